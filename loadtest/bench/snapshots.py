"""Price of snapshots for a process that serves: ``python -m loadtest.bench.snapshots``.

A writer knows a million blocks over 100 workers (sessions of 64, 16 or 4 blocks below ten system prompts,
every tenth on two workers; room for twice as much). It publishes 2,000 operations per second to a real Valkey
while it writes snapshots; a newcomer restores one and reads the log, then a real ``cacheway serve`` starts.

    dump, restore    CPU time of the fold alone, in one go
    writing, warming longest time without the event loop, by the clock and in CPU of its thread; duration
    gc               longest pass of the garbage collector in either
    start to warm    from the start of the process until ``/readiness`` says ``"warm": true``

A timer of one millisecond watches the loop. Run it on a quiet machine.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from loadtest.bench.child import input_ended, say, started
from loadtest.processes import ChildFailed, GatewayChild
from policies import Finished, FleetState, Insert, WorkerPut
from router.shared import EmbeddedValkey, LogClock, NoListener, SharedState, SharingRules

BLOCKS = 1_000_000
WORKERS = 100
SYSTEM_PROMPTS = 10
SYSTEM_BLOCKS = 8
OPS_PER_S = 2_000
SNAPSHOTS = 3
NAMESPACE = "bench-snapshots"


@dataclass(slots=True)
class Stalls:
    """Longest times without the event loop: by the clock, in CPU of the thread, in one garbage collection."""

    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    gc_ms: float = 0.0

    async def watch(self) -> None:
        """Watch the loop until cancelled."""
        gc.callbacks.append(self._collected)
        try:
            while True:
                wall_s, cpu_s = time.perf_counter(), time.thread_time()
                await asyncio.sleep(0.001)
                self.wall_ms = max(self.wall_ms, (time.perf_counter() - wall_s) * 1e3 - 1)
                self.cpu_ms = max(self.cpu_ms, (time.thread_time() - cpu_s) * 1e3)
        finally:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: str, _: object) -> None:
        if phase == "start":
            self._gc_s = time.perf_counter()
        else:
            self.gc_ms = max(self.gc_ms, (time.perf_counter() - self._gc_s) * 1e3)

    _gc_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Report of a writer or a newcomer."""

    stalls: Stalls
    took_s: float
    size_bytes: int
    pieces: int = 0
    dump_s: float = 0.0
    restore_s: float = 0.0


class _Heard(NoListener):
    def __init__(self) -> None:
        self.written: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
        self.read_bytes = 0

    def snapshot_written(self, size_bytes: int, took_s: float) -> None:
        self.written.put_nowait((size_bytes, took_s))

    def snapshot_read(self, size_bytes: int, took_s: float) -> None:
        self.read_bytes = size_bytes


class FillPlan(msgspec.Struct, frozen=True):
    """A writer's or newcomer's Redis, and how much a writer knows."""

    url: str
    blocks: int
    run_blocks: int


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.snapshots", description="Cost of snapshots."
    )
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    asyncio.run(_print_table(parser.parse_args().blocks))


async def _print_table(blocks: int) -> None:
    print(
        f"{blocks:,} blocks over {WORKERS} workers; stalls in ms by the clock / of CPU\n"
        "   run     MB pieces | dump restore ms CPU |  writing  stall   gc     s |"
        "  warming  stall   gc     s | start to warm s"
    )
    for run_blocks in (64, 16, 4):
        async with EmbeddedValkey() as valkey:
            plan = FillPlan(valkey.url, blocks, run_blocks)
            async with started(write, plan) as writer:
                wrote = await writer.next(Measured)
                async with started(warm_up, plan) as newcomer:
                    warmed = await newcomer.next(Measured)
                start_s = await _start_to_warm_s(valkey.url)
        if wrote is None or warmed is None:
            raise ChildFailed("the writer or the newcomer ended early")
        print(
            f"{run_blocks:>6} {wrote.size_bytes / 1e6:>6.1f} {wrote.pieces:>6} |"
            f" {wrote.dump_s * 1e3:>8.0f} {wrote.restore_s * 1e3:>10.0f} |"
            f"{_stalls(wrote)} |{_stalls(warmed)} | {start_s:.2f}",
            flush=True,
        )


def _stalls(measured: Measured) -> str:
    stalls = measured.stalls
    return f" {stalls.wall_ms:>7.1f} / {stalls.cpu_ms:<4.1f} {stalls.gc_ms:>5.1f} {measured.took_s:>5.2f}"


async def _start_to_warm_s(redis_url: str) -> float:
    """Start a gateway; the time until it says that it is warm."""
    flags = ("--redis-url", redis_url, "--namespace", NAMESPACE)
    with tempfile.TemporaryDirectory(prefix="cacheway-bench-") as folder:
        started_s = time.perf_counter()
        async with (
            GatewayChild("gateway", flags, Path(folder)) as gateway,
            httpx.AsyncClient(trust_env=False) as client,
            asyncio.timeout(60),
        ):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    answer = await client.get(f"{gateway.url}/readiness")
                    if answer.json()["shared"]["warm"]:
                        return time.perf_counter() - started_s
                await asyncio.sleep(0.01)


async def write(plan: FillPlan) -> None:
    """Be the writer."""
    _freeze()
    fleet, clock = FleetState(), LogClock()
    fill(fleet, plan.blocks, plan.run_blocks, clock)
    began_s = time.thread_time()
    pieces = fleet.snapshot()
    dump_s = time.thread_time() - began_s
    began_s = time.thread_time()
    FleetState().restore(pieces)
    restore_s = time.thread_time() - began_s
    gc.collect()  # the second fleet
    listener, stalls = _Heard(), Stalls()
    rules = SharingRules(namespace=NAMESPACE, snapshot_interval_s=1.0)
    shared = SharedState(rules, plan.url, "writer", fleet, clock, listener)
    async with _tasks(shared.run(), _publish(shared, clock)):
        await shared.wait_ready()
        await listener.written.get()  # the first comes with the connection
        async with _tasks(stalls.watch()):
            written = [await listener.written.get() for _ in range(SNAPSHOTS)]
            size_bytes, took_s = written[-1]
            say(Measured(stalls, took_s, size_bytes, len(pieces), dump_s, restore_s))
            await input_ended()


async def warm_up(plan: FillPlan) -> None:
    """Be the newcomer."""
    _freeze()
    listener, stalls, clock = _Heard(), Stalls(), LogClock()
    rules = SharingRules(namespace=NAMESPACE, snapshot_interval_s=3600.0)
    shared = SharedState(rules, plan.url, "newcomer", FleetState(), clock, listener)
    async with _tasks(stalls.watch()):
        began_s = time.perf_counter()
        async with _tasks(shared.run(), _publish(shared, clock)):
            await shared.wait_ready()
            say(Measured(stalls, time.perf_counter() - began_s, listener.read_bytes))
            await input_ended()


def _freeze() -> None:
    """Keep what was imported out of the garbage collector, as `router.serving` does."""
    gc.collect()
    gc.freeze()


@contextlib.asynccontextmanager
async def _tasks(*loops: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run loops while the body runs; one that fails cancels it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        yield
        for task in tasks:
            task.cancel()


def fill(fleet: FleetState, blocks: int, run_blocks: int, clock: LogClock) -> None:
    """Insert sessions of one run each until the fleet holds this many blocks."""
    capacity_tokens = (1_000 + 2 * blocks // WORKERS) * fleet.rules.block_tokens
    for number in range(WORKERS):
        url = f"http://w{number}:1"
        fleet.apply(WorkerPut(url[7:], clock.now_us(), "static", url, capacity_tokens=capacity_tokens))
    prompts = [os.urandom(SYSTEM_BLOCKS * 8) for _ in range(SYSTEM_PROMPTS)]
    for number in range((blocks - SYSTEM_PROMPTS * SYSTEM_BLOCKS) // run_blocks):
        path = prompts[number % SYSTEM_PROMPTS] + os.urandom(run_blocks * 8)
        workers = [number % WORKERS] if number % 10 else [number % WORKERS, (number + 1) % WORKERS]
        for worker in workers:
            fleet.apply(Insert(f"w{worker}:1", path, clock.now_us(), end=False))


async def _publish(shared: SharedState, clock: LogClock) -> None:
    """Publish operations at a steady rate, until cancelled: turns of sessions, and ends of requests."""
    number, started_s = 0, time.monotonic()
    while True:
        await asyncio.sleep(0.005)
        while number < (time.monotonic() - started_s) * OPS_PER_S:
            at_us = clock.now_us()
            if number % 10:
                shared.publish(Finished(f"r{number}", at_us))
            else:
                shared.publish(Insert(f"w{number // 10 % WORKERS}:1", os.urandom(64 * 8), at_us, end=False))
            number += 1


if __name__ == "__main__":
    main()
