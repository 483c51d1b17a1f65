"""CPU cost of giving one request two legs, by hand-over protocol and size of its body.

    python -m loadtest.bench.legs [--repeats 7]

One row is one request from its dispatch to its end, without sockets: the bodies of both legs are written,
both answers heard. What two requests cost at the pools comes on top (`loadtest.bench.request`). Times are
process CPU, the least of the repeats. Mooncake's legs are written as NIXL's and sent as SGLang's.
"""

import argparse
import asyncio
import time
from typing import Any

from loadtest.bench.identity import bodies
from policies import Worker
from router.fleet import LocalWorker
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier
from router.handover import Pair, handovers

PROTOCOLS = ("sglang", "nixl")
SIZES = ("1 KB", "64 KB", "4 MB")

ANSWER = b'{"usage":{"prompt_tokens":65536},"kv_transfer_params":{"remote_block_ids":[%b]}}' % b",".join(
    b"%d" % number for number in range(4096)
)
"""Of a prefill leg: 64 K tokens in blocks of 16."""


class Silent:
    """A worker's connections, a request on one of them, and who waits for it: none of them does anything."""

    def __init__(self) -> None:
        self.open = 1
        self.sink: Any = self

    def send(self, *arguments: Any, **_: Any) -> "Silent":
        """See `router.proxy.WorkerPool`."""
        self.sink = arguments[5]
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def cost_us(protocol: str, endpoint: Endpoint, body: bytes, repeats: int) -> float:
    """Least CPU of one request, microseconds."""
    handover, sink = handovers()[protocol], Silent()
    prefill, decode = Silent(), Silent()
    workers: list[LocalWorker] = [
        LocalWorker(Worker(name, 0, f"http://{name}:30000"), pool, None)  # type: ignore[arg-type]
        for name, pool in (("prefill", prefill), ("decode", decode))
    ]
    parsed = Identifier("bench").parse(endpoint, body)
    lines = b"content-type: application/json\r\nx-request-id: bench\r\n"
    pair = Pair(parsed, b"POST", endpoint.encode(), b"", lines, (body,), b"bench", workers[0], workers[1])
    loops = max(3, min(5_000, (8 << 20) // len(body)))
    samples = []
    for _ in range(repeats):
        began_ns = time.process_time_ns()
        for _ in range(loops):
            handover.send(pair, sink)
            for answering, answer in ((prefill, ANSWER), (decode, b"{}")):
                answering.sink.upstream_head(200, b"", len(answer))
                answering.sink.upstream_data(answer)
                answering.sink.upstream_end()
        samples.append((time.process_time_ns() - began_ns) / loops / 1000)
    return min(samples)


async def measure(repeats: int) -> None:
    """Print the table."""
    print(
        f"{'request':24} {'body bytes':>12}" + "".join(f" {protocol + ' us':>12}" for protocol in PROTOCOLS)
    )
    for name, (endpoint, body) in bodies().items():
        if name.startswith("chat plain") and name.endswith(SIZES):
            costs = (cost_us(protocol, endpoint, body, repeats) for protocol in PROTOCOLS)
            print(f"{name:24} {len(body):12,}" + "".join(f" {cost:12,.1f}" for cost in costs))


def main() -> None:
    """Measure."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=7)
    asyncio.run(measure(arguments.parse_args().repeats))


if __name__ == "__main__":
    main()
