"""What the shared log costs, and whether anything in it grows: a soak with real processes.

    python -m loadtest.bench.shared_log --replicas 4 --ops-per-s 2000 --sessions-per-s 200 --duration-s 600

starts a Valkey of its own and these children (`loadtest.bench.log_replica`), all on this machine:

    replicas   publish their share of the traffic and apply everybody else's
    observer   applies everything and publishes nothing
    dry        makes one share of the traffic and applies it, in a namespace of its own, without the log
    idle       alone in a namespace in which nothing happens

*Flat or not.* Every container that a replica holds (`loadtest.bench.sizes`), its resident memory, the
log, the snapshot and Valkey's memory are sampled every few seconds. `loadtest.bench.trend` judges what
comes after the warm-up, in which the workers' caches must have filled.

*CPU* is thread time of the event loop without housekeeping and the encoding of snapshots, which are told
apart. Differences tell the parts of it, all from one run, so that a noisy neighbour disturbs both sides:

    reading, per operation   (observer - idle) / operations applied: all the way from the socket
    flush                    (replica - dry - reading) / flushes: buffer, timers, socket, reading it back

A task's own CPU is measured too; what no task does (sockets, timers, callbacks of protocols) is left out of
that, but it also holds on a machine so busy that differences do not.

*Lag* is told by the receivers, for every operation (`loadtest.bench.log_replica`).
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import uvloop
from redis.asyncio import Redis

from loadtest.bench.log_figures import RedisSample, Soak
from loadtest.bench.log_replica import ReplicaPlan, ReplicaReport
from loadtest.bench.log_traffic import TrafficRules
from router.shared import EmbeddedValkey
from router.shared.keys import Keys

NAMESPACE = "soak"
REPORT_BYTES_MAX = 1 << 24


def main() -> None:
    """Run the soak and print what it showed."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.shared_log", description="Soak, cost and lag of the shared log."
    )
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--ops-per-s", type=float, default=2000.0, help="of all replicas [default 2000]")
    parser.add_argument("--sessions-per-s", type=float, default=200.0, help="of all replicas [default 200]")
    parser.add_argument("--duration-s", type=float, default=600.0, help="[default 600]")
    parser.add_argument("--warm-up-s", type=float, help="[default a quarter of the duration]")
    parser.add_argument("--report-every-s", type=float, default=5.0, help="[default 5]")
    parser.add_argument("--workers", type=int, default=64, help="[default 64]")
    parser.add_argument("--capacity-blocks", type=int, default=2000, help="of a worker [default 2000]")
    parser.add_argument(
        "--replaced-every-s", type=float, default=10.0, help="one worker is, by another [default 10]"
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same traffic [default 1]")
    options = parser.parse_args()
    if options.warm_up_s is None:
        options.warm_up_s = options.duration_s / 4
    print("\n" + uvloop.run(_soak(options)).text())


async def _soak(options: argparse.Namespace) -> Soak:
    """Run all processes for as long as asked, telling how it goes."""
    async with EmbeddedValkey() as valkey, Redis.from_url(valkey.url) as redis:
        children = [_Child(plan) for plan in _plans(options, valkey.url)]
        *replicas, observer, dry, idle = [child.reports for child in children]
        began_s = time.monotonic()
        soak = Soak(began_s, began_s + options.warm_up_s, replicas, observer, dry, idle, [])
        tasks = [asyncio.create_task(child.run()) for child in children]
        tasks.append(asyncio.create_task(_watch(redis, soak, options.report_every_s)))
        ended, _ = await asyncio.wait(tasks, timeout=options.duration_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            task.result()  # says what failed
        return soak


def _plans(options: argparse.Namespace, url: str) -> Iterable[ReplicaPlan]:
    every_s, share = options.report_every_s, options.replicas

    def traffic(replica: str, *, leads: bool) -> TrafficRules:
        return TrafficRules(
            replica=replica,
            seed=options.seed,
            ops_per_s=options.ops_per_s / share,
            sessions_per_s=options.sessions_per_s / share,
            workers=options.workers,
            replaced_every_s=options.replaced_every_s,
            capacity_blocks=options.capacity_blocks,
            leads=leads,
        )

    for number in range(options.replicas):
        name = f"replica-{number}"
        yield ReplicaPlan(url, NAMESPACE, name, every_s, traffic=traffic(name, leads=number == 0))
    yield ReplicaPlan(url, NAMESPACE, "observer", every_s, snapshots=False)
    yield ReplicaPlan(
        url, "dry", "dry", every_s, snapshots=False, traffic=traffic("dry", leads=True), dry=True
    )
    yield ReplicaPlan(url, "idle", "idle", every_s, snapshots=False)


@dataclass(slots=True)
class _Child:
    """A replica in a process of its own."""

    plan: ReplicaPlan
    reports: list[ReplicaReport] = field(default_factory=list)

    async def run(self) -> None:
        """Gather its reports until cancelled; then close its input, which ends it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadtest.bench.log_replica"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=REPORT_BYTES_MAX,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(self.plan) + b"\n")
            while line := await process.stdout.readline():
                self.reports.append(msgspec.json.decode(line, type=ReplicaReport))
            raise RuntimeError(f"{self.plan.replica} ended by itself")
        finally:
            process.stdin.close()
            await process.wait()


async def _watch(redis: Redis, soak: Soak, every_s: float) -> None:
    """Sample Valkey and print a line of progress, until cancelled."""
    keys = Keys(NAMESPACE)
    while True:
        await asyncio.sleep(every_s)
        memory, cpu = await redis.info("memory"), await redis.info("cpu")
        soak.redis.append(
            RedisSample(
                at_s=time.monotonic(),
                entries=await redis.xlen(keys.log),
                log_bytes=await redis.memory_usage(keys.log, samples=0) or 0,
                snapshot_bytes=int(await redis.hget(keys.snapshot, "size") or 0),
                memory_bytes=memory["used_memory"],
                cpu_s=cpu["used_cpu_user"] + cpu["used_cpu_sys"],
            )
        )
        if (line := soak.progress()) is not None:
            print(line, flush=True)


if __name__ == "__main__":
    main()
