"""Cost of the console's event stream to a gateway: ``python -m loadtest.bench.console``.

A gateway process without sockets folds placements and ends, so that each worker's load changes once a second,
and 60 requests per second end. Listeners then read the stream in the same process. Reported is, against the
same traffic without a listener: *cpu* in percent of a core, *kb/s* that one listener receives (1,000 bytes),
and *longest*, the largest delay of the event loop in milliseconds.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from random import Random

from policies import Attempt, Chosen, Finished, Placed
from router.app import GatewayProcess
from router.console import EventStream
from router.fleet import Health
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.gateway.recent_decisions import RecentDecision
from router.settings import Settings

TICKS_PER_S = 20
DECISIONS_PER_TICK = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Result of one run: share of a core, bytes per second of one listener, largest delay of the loop."""

    cpu_ratio: float
    bytes_per_s: float
    longest_s: float


class Traffic:
    """Changes every worker's load once a second, and lets requests end."""

    def __init__(self, process: GatewayProcess, seed: int = 1) -> None:
        self._process = process
        self._random = Random(seed)
        self._workers = [local.worker.worker_id for local in process.registry.all()]
        self._held: dict[str, str] = {}
        self._number = 0
        self.longest_s = 0.0

    async def run(self, seconds: float) -> None:
        """Go on for some seconds."""
        ticks = round(seconds * TICKS_PER_S)
        begun_s = time.monotonic()
        for tick in range(ticks):
            share = self._workers[tick % TICKS_PER_S :: TICKS_PER_S]
            for worker_id in share:
                self._change(worker_id)
            for _ in range(DECISIONS_PER_TICK):
                self._decide(self._random.choice(self._workers))
            due_s = begun_s + (tick + 1) / TICKS_PER_S
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            self.longest_s = max(self.longest_s, time.monotonic() - due_s)

    def _change(self, worker_id: str) -> None:
        fleet, now_us = self._process.fleet, self._process.clock.now_us()
        before = self._held.pop(worker_id, None)
        if before is not None:
            fleet.apply(Finished(before, now_us))
        self._number += 1
        self._held[worker_id] = request_id = f"r{self._number}"
        service_us = self._random.randrange(10_000, 9_000_000)
        fleet.apply(Placed(request_id, now_us, worker_id, "bench", service_us, 5000, 9000))

    def _decide(self, worker_id: str) -> None:
        decisions, now_us, now_s = (
            self._process.gateway.reports.decisions,
            self._process.clock.now_us(),
            time.monotonic(),
        )
        chosen = Chosen(0, 4096, 4096, 900, 0.1, 0.2, "affinity")
        attempt = Attempt("a", worker_id, chosen, now_us, 0, 256.0, now_s - 1.0)
        parsed = ParsedRequest(
            Endpoint.CHAT,
            "qwen3-coder-480b",
            stream=True,
            output_tokens_max=None,
            n=1,
            priority=0,
            tenant="",
            session="",
            lora=None,
            paths=(),
            prompt_bytes=0,
            prompt_token_ids=0,
            key=self._number,
            prefix_key=self._number,
        )
        decisions.add(
            RecentDecision(
                path=Endpoint.CHAT.encode(),
                client="10.0.0.1",
                received_s=now_s - 1.1,
                request_bytes=4096,
                request_id=b"0123456789abcdef",
                worker_request_id=b"0123456789abcdef",
                endpoint=Endpoint.CHAT,
                parsed=parsed,
                attempt=attempt,
                attempts=1,
                first_byte_s=now_s - 0.8,
                ended_us=now_us,
                ended_s=now_s,
                outcome="completed",
                status=200,
            )
        )


async def measured(workers: int, listeners: int, seconds: float) -> Cost:
    """Run the traffic with some listeners for some seconds."""
    urls = [f"http://10.0.{number // 250}.{number % 250 + 1}:30000" for number in range(workers)]
    settings = Settings.model_validate({"fleet": {"worker_urls": urls}, "admin": {"port": 0}})
    process = GatewayProcess(settings, redis_url="redis://127.0.0.1:1")
    for local in process.registry.all():
        local.health = Health.HEALTHY
    await process.rates.look()
    traffic = Traffic(process)
    received = [0] * listeners
    tasks = [asyncio.create_task(_listen(process.console, received, n)) for n in range(listeners)]
    await traffic.run(2.0)  # the whole state has been sent, and every worker has something to do
    received[:] = [0] * listeners
    traffic.longest_s, begun_s, cpu_s = 0.0, time.monotonic(), time.process_time()
    await traffic.run(seconds)
    elapsed_s, used_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    await process.console.close()
    await asyncio.gather(*tasks)
    return Cost(used_s / elapsed_s, max(received, default=0) / elapsed_s, traffic.longest_s)


async def _listen(stream: EventStream, received: list[int], number: int) -> None:
    async for message in stream.messages(stream.join()):
        received[number] += len(message)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.console", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 1000], help="sizes of the fleet")
    parser.add_argument("--listeners", type=int, nargs="+", default=[1, 8], help="how many read the stream")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    options = parser.parse_args()
    print(f"{'workers':>8} {'listeners':>9} {'cpu %':>7} {'kb/s':>7} {'longest ms':>11}")
    for workers in options.workers:
        idle = asyncio.run(measured(workers, 0, options.seconds))
        print(f"{workers:8,} {0:9} {'-':>7} {'-':>7} {1e3 * idle.longest_s:11.1f}")
        for listeners in options.listeners:
            cost = asyncio.run(measured(workers, listeners, options.seconds))
            cpu_ratio = max(cost.cpu_ratio - idle.cpu_ratio, 0.0)
            print(
                f"{workers:8,} {listeners:9} {100 * cpu_ratio:7.2f} {cost.bytes_per_s / 1e3:7.1f} "
                f"{1e3 * cost.longest_s:11.1f}"
            )


if __name__ == "__main__":
    main()
