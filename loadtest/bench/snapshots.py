"""What snapshots cost a process that serves: ``python -m loadtest.bench.snapshots``.

A writer knows a million blocks over 100 workers: sessions of 64, 16 or 4 blocks below one of ten
system prompts, every tenth also on a second worker; the workers have room for twice as much. It publishes
2,000 operations per second to a real Valkey while it writes snapshots; then a newcomer restores one
and reads the log, and at last a real ``cacheway serve`` starts. Per length of run:

    dump, restore   CPU time of the fold alone, in one go
    writing, warming  the longest time for which the event loop did nothing else: by the clock, and in
                    CPU time of its thread, which other processes on the machine do not lengthen;
                    and how long it took
    gc              the longest pass of the garbage collector in either
    start to warm   from the start of the process until ``/readiness`` says ``"warm": true``

The loop is watched by a timer of one millisecond. Run it on a quiet machine.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass

import httpx
import msgspec
import uvloop

from loadtest.processes import free_port
from policies import Finished, FleetState, Insert, WorkerPut
from router.shared import EmbeddedValkey, LogClock, NoListener, SharedConfig, SharedState

BLOCKS = 1_000_000
WORKERS = 100
SYSTEM_PROMPTS = 10
SYSTEM_BLOCKS = 8
OPS_PER_S = 2_000
SNAPSHOTS = 3
NAMESPACE = "bench-snapshots"


@dataclass(slots=True)
class Stalls:
    """How long an event loop did nothing else, at most.

    Attributes:
        wall_ms: By the clock.
        cpu_ms: In CPU time of the thread.
        gc_ms: In one pass of the garbage collector, by the clock.
    """

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
    """What a writer or a newcomer tells."""

    stalls: Stalls
    took_s: float
    size_bytes: int
    pieces: int = 0
    dump_s: float = 0.0
    restore_s: float = 0.0


class _Heard(NoListener):
    """Waits for snapshots."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
        self.read_bytes = 0

    def snapshot_written(self, size_bytes: int, took_s: float) -> None:
        """One more."""
        self.written.put_nowait((size_bytes, took_s))

    def snapshot_read(self, size_bytes: int, took_s: float) -> None:
        """Note its size."""
        self.read_bytes = size_bytes


def main() -> None:
    """Print the table, or be one of its processes."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.snapshots", description="Cost of snapshots."
    )
    parser.add_argument("--role", choices=("writer", "newcomer"))
    parser.add_argument("--url", default="")
    parser.add_argument("--run-blocks", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    given = parser.parse_args()
    gc.collect()
    gc.freeze()  # as `router.serving` does
    if given.role == "writer":
        uvloop.run(_write(given.url, given.blocks, given.run_blocks))
    elif given.role == "newcomer":
        uvloop.run(_warm_up(given.url))
    else:
        asyncio.run(_print_table(given.blocks))


async def _print_table(blocks: int) -> None:
    print(
        f"{blocks:,} blocks over {WORKERS} workers; stalls in ms by the clock / of CPU\n"
        "   run     MB pieces | dump restore ms CPU |  writing  stall   gc     s |"
        "  warming  stall   gc     s | start to warm s"
    )
    for run_blocks in (64, 16, 4):
        async with EmbeddedValkey() as valkey:
            common = ("--url", valkey.url, "--run-blocks", str(run_blocks), "--blocks", str(blocks))
            async with _role("writer", *common) as writer:
                wrote = await _told(writer)
                async with _role("newcomer", *common) as newcomer:
                    warmed = await _told(newcomer)
                start_s = await _start_to_warm_s(valkey.url)
        print(
            f"{run_blocks:>6} {wrote.size_bytes / 1e6:>6.1f} {wrote.pieces:>6} |"
            f" {wrote.dump_s * 1e3:>8.0f} {wrote.restore_s * 1e3:>10.0f} |"
            f"{_stalls(wrote)} |{_stalls(warmed)} | {start_s:.2f}",
            flush=True,
        )


def _stalls(measured: Measured) -> str:
    stalls = measured.stalls
    return f" {stalls.wall_ms:>7.1f} / {stalls.cpu_ms:<4.1f} {stalls.gc_ms:>5.1f} {measured.took_s:>5.2f}"


@contextlib.asynccontextmanager
async def _role(role: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of this module; it ends when its input does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.bench.snapshots", "--role", role, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def _told(process: asyncio.subprocess.Process) -> Measured:
    assert process.stdout is not None
    return msgspec.json.decode(await process.stdout.readline(), type=Measured)


async def _start_to_warm_s(redis_url: str) -> float:
    """Start a gateway; the time until it says that it is warm."""
    port = free_port()
    arguments = ("serve", "--host", "127.0.0.1", "--port", str(port), "--redis-url", redis_url)
    environment = {**os.environ, "CACHEWAY_NAMESPACE": NAMESPACE, "CACHEWAY_ADMIN_PORT": "0"}
    started_s = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", *arguments), stderr=asyncio.subprocess.DEVNULL, env=environment
    )
    try:
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    answer = await client.get(f"http://127.0.0.1:{port}/readiness")
                    if answer.json()["shared"]["warm"]:
                        return time.perf_counter() - started_s
                await asyncio.sleep(0.01)
    finally:
        process.terminate()
        await process.wait()


async def _write(url: str, blocks: int, run_blocks: int) -> None:
    """Be the writer."""
    fleet, clock = FleetState(), LogClock()
    fill(fleet, blocks, run_blocks, clock)
    started_s = time.thread_time()
    pieces = fleet.snapshot()
    dump_s = time.thread_time() - started_s
    started_s = time.thread_time()
    FleetState().restore(pieces)
    restore_s = time.thread_time() - started_s
    gc.collect()  # the second fleet
    heard, stalls = _Heard(), Stalls()
    config = SharedConfig(url, NAMESPACE, "writer", snapshot_interval_s=1.0)
    shared = SharedState(config, fleet, clock, heard)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shared.run()), group.create_task(_publish(shared, clock))]
        await shared.wait_ready()
        await heard.written.get()  # the first comes with the connection
        tasks.append(group.create_task(stalls.watch()))
        written = [await heard.written.get() for _ in range(SNAPSHOTS)]
        size_bytes, took_s = written[-1]
        _tell(Measured(stalls, took_s, size_bytes, len(pieces), dump_s, restore_s))
        await _input_ended()
        for task in tasks:
            task.cancel()


async def _warm_up(url: str) -> None:
    """Be the newcomer."""
    heard, stalls, clock = _Heard(), Stalls(), LogClock()
    config = SharedConfig(url, NAMESPACE, "newcomer", snapshot_interval_s=3600.0)
    fleet = FleetState()
    shared = SharedState(config, fleet, clock, heard)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stalls.watch())]
        started_s = time.perf_counter()
        tasks.append(group.create_task(shared.run()))
        tasks.append(group.create_task(_publish(shared, clock)))
        await shared.wait_ready()
        _tell(Measured(stalls, time.perf_counter() - started_s, heard.read_bytes))
        await _input_ended()
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


def _tell(measured: Measured) -> None:
    print(msgspec.json.encode(asdict(measured)).decode(), flush=True)


async def _input_ended() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    main()
