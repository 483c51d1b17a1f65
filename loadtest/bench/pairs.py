"""Price of giving one request two legs, and the end of the other leg when one fails.

    python -m loadtest.bench.pairs                            CPU by hand-over protocol and size of the body
    python -m loadtest.bench.pairs --failures --times 30      milliseconds, each failure with each protocol

*CPU*: one request from its dispatch to its end, without sockets: the bodies of both legs written, both
answers read; the least of the repeats. The price of two requests at the pools comes on top
(`loadtest.bench.request`). Mooncake's legs are written as NIXL's and sent as SGLang's.

*Failures*: a gateway process, one prefill and one decode engine in this one. While both legs of a request
work, a leg is reset or the client leaves; the clock stops when the other engines have no job. Prints P50 and
the longest; the status is 1 if one took longer than `ENDED_S_MAX`.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.bench.costs import mean_us
from loadtest.bench.tree import bodies
from loadtest.engine import EmulatedEngine, EngineSettings, Fault
from loadtest.engine.handover import HandoverSettings
from loadtest.processes import ChildFailed, GatewayChild
from loadtest.report import milliseconds, percentile
from policies import HAND_OVERS, Worker
from router.fleet import LocalWorker
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier
from router.handover import Pair, handovers
from router.proxy import RequestHead

COUNTED = ("sglang", "nixl")
SIZES = ("1 KB", "64 KB", "4 MB")

ANSWER = b'{"usage":{"prompt_tokens":65536},"kv_transfer_params":{"remote_block_ids":[%b]}}' % b",".join(
    b"%d" % number for number in range(4096)
)
"""Answer of a prefill leg: 64 K tokens in blocks of 16."""

ENDED_S_MAX = 0.1
"""A leg whose partner failed is over within this."""

PROTOCOLS = tuple(HAND_OVERS)
FAILURES = ("prefill worker dies", "decode worker dies", "client leaves")
SLOW_CLASS = "8xh200-1t-hybrid"
POLL_S = 0.001
GIVE_UP_S = 20.0
PROMPT = "word " * 3_000
PREFILL_TOKENS_PER_S = 50.0


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
    head = RequestHead(b"POST", endpoint.encode())
    pair = Pair(parsed, head, lines, (body,), b"bench", workers[0], workers[1])

    def request(_: int) -> None:
        handover.send(pair, sink)
        for answering, answer in ((prefill, ANSWER), (decode, b"{}")):
            answering.sink.upstream_head(200, b"", len(answer))
            answering.sink.upstream_data(answer)
            answering.sink.upstream_end()

    loops = max(3, min(5_000, (8 << 20) // len(body)))
    return min(mean_us(request, loops) for _ in range(repeats))


async def print_cpu(repeats: int) -> None:
    """Print the table of CPU."""
    print(f"{'request':24} {'body bytes':>12}" + "".join(f" {protocol + ' us':>12}" for protocol in COUNTED))
    for name, (endpoint, body) in bodies().items():
        if name.startswith("chat plain") and name.endswith(SIZES):
            costs = (cost_us(protocol, endpoint, body, repeats) for protocol in COUNTED)
            print(f"{name:24} {len(body):12,}" + "".join(f" {cost:12,.1f}" for cost in costs))


class _Stage:
    def __init__(self, protocol: Any, stack: AsyncExitStack) -> None:
        self._protocol = protocol
        self._stack = stack
        self.engines: dict[str, EmulatedEngine] = {}
        self.url = ""

    async def start(self) -> None:
        dialect: Any = "sglang" if self._protocol == "sglang" else "vllm"
        roles: tuple[Any, ...] = ("prefill", "decode")
        for role in roles:
            settings = EngineSettings(
                dialect=dialect,
                prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
                handover=HandoverSettings(
                    protocol=self._protocol, part="both" if self._protocol == "nixl" else role, lease_s=0.5
                ),
            )
            self.engines[role] = await self._stack.enter_async_context(EmulatedEngine(settings))
        prefill, decode = self.engines.values()
        assert prefill.handover is not None
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cw-legs-")))
        labels = [f"handover={self._protocol}"]
        flags = ["--prefill", prefill.url, str(prefill.handover.port), *labels]
        flags += ["--decode", decode.url, *labels, f"worker_class={SLOW_CLASS}", "--log-level", "error"]
        flags += ["--disable-retries", "--disable-circuit-breaker", "--slow-start-secs", "0"]
        flags += ["--health-check-interval-secs", "0.2", "--prefill-tokens-per-s", "1000000"]
        gateway = await self._stack.enter_async_context(GatewayChild("gateway", flags, directory))
        self.url = gateway.url
        await gateway.wait_until_ready()

    async def well(self, client: httpx.AsyncClient) -> None:
        async with asyncio.timeout(GIVE_UP_S):
            while True:
                workers = (await client.get(f"{self.url}/workers")).json()["workers"]
                if all(worker["is_healthy"] and worker["models"] for worker in workers):
                    return
                await asyncio.sleep(POLL_S)

    def busy(self, role: str) -> bool:
        """True if an engine has a job, or waits for another engine on behalf of one."""
        stats = self.engines[role].stats()
        return bool(stats["running"] or stats["waiting"] or any(stats["handover"].values()))

    async def fail(self, client: httpx.AsyncClient, failure: str) -> float:
        """Let one request fail; seconds until the other leg is over."""
        body = {"messages": [{"role": "user", "content": PROMPT}], "stream": True, "model": "emulated"}
        # With NIXL there is no decode leg before the prefill is over.
        legs = ("prefill",) if self._protocol == "nixl" else ("prefill", "decode")
        asked = asyncio.create_task(self._ask(client, body))
        await _until(lambda: all(map(self.busy, legs)))
        others: tuple[str, ...] = legs
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        match failure:
            case "prefill worker dies":
                others = ("decode",)
                self.engines["prefill"].inject(Fault("crash"))
            case "decode worker dies":
                others = ("prefill",)
                self.engines["decode"].inject(Fault("crash"))
            case _:
                asked.cancel()
        await _until(lambda: not any(map(self.busy, others)))
        took_s = loop.time() - began_s
        await asyncio.gather(asked, return_exceptions=True)
        for engine in self.engines.values():
            engine.mend()
        await _until(lambda: not any(map(self.busy, self.engines)))
        await self.well(client)
        return took_s

    async def _ask(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as answer:
            await answer.aread()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while not condition():  # noqa: ASYNC110 - the engines have no event for it
            await asyncio.sleep(POLL_S)


async def measure(protocol: str, times: int) -> dict[str, list[float]]:
    """Seconds until the other leg was over, by failure, ascending; `TimeoutError` if a leg did not end."""
    took_s: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        stage = _Stage(protocol, stack)
        await stage.start()
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60.0))
        await stage.well(client)
        for failure in FAILURES:
            if protocol == "nixl" and failure != "client leaves":
                continue
            took_s[failure] = sorted([await stage.fail(client, failure) for _ in range(times)])
    return took_s


def main() -> int:
    """Measure and print; the status is 1 if a leg failed and the other ended too late."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.pairs", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--repeats", type=int, default=7, help="of measuring CPU [%(default)s]")
    parser.add_argument("--failures", action="store_true", help="let legs fail instead")
    parser.add_argument("--times", type=int, default=30, help="each failure [%(default)s]")
    parser.add_argument("--protocol", choices=PROTOCOLS, action="append", help="only this [all]")
    options = parser.parse_args()
    if not options.failures:
        asyncio.run(print_cpu(options.repeats))
        return 0
    table = Table("", *FAILURES, box=SIMPLE_HEAD, title="until the other leg is over, P50 / longest")
    late = False
    for protocol in options.protocol or PROTOCOLS:
        try:
            took_s = uvloop.run(measure(protocol, options.times))
        except (ChildFailed, TimeoutError) as error:
            print(f"FAILED: {protocol}: {error!r}", file=sys.stderr)
            return 1
        late |= any(times[-1] > ENDED_S_MAX for times in took_s.values())
        table.add_row(protocol, *(_told(took_s.get(failure)) for failure in FAILURES))
    Console(width=120).print(table)
    return 1 if late else 0


def _told(times_s: list[float] | None) -> str:
    if times_s is None:
        return "one leg at a time"
    return f"{milliseconds(percentile(times_s, 0.5))} / {milliseconds(times_s[-1])}"


if __name__ == "__main__":
    sys.exit(main())
