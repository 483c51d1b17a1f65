"""One replica of the shared log's soak: the gateway's shared state without the gateway, watching itself.

A child process of `loadtest.bench.shared_log`. It reads one line of JSON from standard input
(`ReplicaPlan`), shares a real `FleetState` through a real `SharedState`, publishes its part of the
traffic and writes a line of JSON (`ReplicaReport`) every few seconds, until standard input ends.

Reports count from the start of the process; whoever reads them takes differences. What is measured:

* ``main_s``, CPU of the event loop's thread, and ``cpu_s``, of the whole process.
* ``tasks_s``, CPU by task (`loadtest.bench.task_time`).
* ``publish_s``, CPU of publishing the own operations, ``collect_s`` of housekeeping, ``snapshot_s`` of
  encoding snapshots. Each is ``thread_time`` around code that never awaits.
* ``lags``, the replication lag of every operation of a sibling that carries a time: log time when it is
  applied less the log time that its publisher stamped on it, in bins of `LAG_BIN_US`. ``offset_us``
  tells how far two clocks disagree: on one host it should be the same in all processes.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import uvloop

from loadtest.bench.log_traffic import Traffic, TrafficRules
from loadtest.bench.sizes import container_sizes
from loadtest.bench.task_time import TaskTimes
from policies import Finished, FirstToken, FleetState, Op, Placed
from router.shared import LogClock, NoListener, SharedConfig, SharedState

LAG_BIN_US = 100
HOUSEKEEPING_S = 1.0
"""As in the gateway."""
NEVER_S = 1e9


class ReplicaPlan(msgspec.Struct, frozen=True):
    """What one replica does.

    Attributes:
        url: Where Redis is.
        namespace: With whom it shares.
        replica: Its id.
        report_every_s: Time between two reports.
        snapshots: Whether it writes snapshots when it is its turn.
        traffic: What it publishes; None for nothing.
        dry: Apply the own operations, but keep them from the log.
    """

    url: str
    namespace: str
    replica: str
    report_every_s: float
    snapshots: bool = True
    traffic: TrafficRules | None = None
    dry: bool = False


class ReplicaReport(msgspec.Struct, frozen=True):
    """What a replica knows of itself; counts and CPU seconds since its start."""

    at_s: float
    cpu_s: float
    main_s: float
    tasks_s: dict[str, float]
    publish_s: float
    collect_s: float
    snapshot_s: float
    published_ops: int
    applied_ops: int
    applied_entries: int
    flushes: int
    flushed_bytes: int
    snapshots: int
    snapshot_bytes: int
    gaps: int
    lost_ops: int
    late_s: float
    offset_us: int
    rss_bytes: int
    blocks: int
    nodes: int
    degraded: str | None
    sizes: dict[str, int]
    lags: dict[int, int]


class _Watch(NoListener):
    """Counts what the shared state reports."""

    def __init__(self) -> None:
        self.flushes = self.flushed_bytes = self.applied_entries = 0
        self.snapshots = self.snapshot_bytes = self.gaps = 0

    def flushed(self, ops: int, size_bytes: int, took_s: float) -> None:
        self.flushes += 1
        self.flushed_bytes += size_bytes

    def applied(self, ops: int, lag_s: float) -> None:
        self.applied_entries += 1

    def snapshot_written(self, size_bytes: int, took_s: float) -> None:
        self.snapshots += 1
        self.snapshot_bytes = size_bytes

    def gap(self) -> None:
        self.gaps += 1


class _MeasuredFold:
    """The fleet's state, with a look at the clock for every operation of a sibling."""

    def __init__(self, fleet: FleetState, clock: LogClock) -> None:
        self._fleet = fleet
        self._clock = clock
        self.own = False
        self.applied_ops = 0
        self.snapshot_s = 0.0
        self.lags: Counter[int] = Counter()

    def apply(self, op: Op) -> None:
        self._fleet.apply(op)
        if self.own:
            return
        self.applied_ops += 1
        if isinstance(op, Placed | FirstToken | Finished):
            self.lags[(self._clock.now_us() - op.at_us) // LAG_BIN_US] += 1

    @property
    def snapshot_version(self) -> int:
        return self._fleet.snapshot_version

    def snapshot_steps(self) -> Iterator[bytes | None]:
        steps = self._fleet.snapshot_steps()
        while True:
            began_s = time.thread_time()
            try:
                piece = next(steps)
            except StopIteration:
                return
            finally:
                self.snapshot_s += time.thread_time() - began_s
            yield piece

    @property
    def left_out_ops(self) -> int:
        return self._fleet.left_out_ops

    def restore_steps(
        self, pieces: Sequence[bytes], own: str, *, missed: bool
    ) -> Generator[float, None, int]:
        return self._fleet.restore_steps(pieces, own, missed=missed)


class _Replica:
    """The loops of one replica."""

    def __init__(self, plan: ReplicaPlan) -> None:
        self._plan = plan
        self._clock = LogClock()
        self._fleet = FleetState()
        self._fold = _MeasuredFold(self._fleet, self._clock)
        self._watch = _Watch()
        self._times = TaskTimes()
        config = SharedConfig(plan.url, plan.namespace, plan.replica)
        if not plan.snapshots:
            config = replace(config, snapshot_interval_s=NEVER_S)
        self._shared = SharedState(config, self._fold, self._clock, self._watch)
        self._publish_s = self._collect_s = self._late_s = 0.0
        self._published_ops = 0

    async def run(self) -> None:
        """Share, publish and report until standard input ends, or something fails."""
        self._times.install(asyncio.get_running_loop())
        loops = [self._shared.run(), self._housekeeping(), self._reporting(), _input_ended()]
        tasks = [asyncio.create_task(loop) for loop in loops]
        if self._plan.traffic is not None:
            tasks.append(asyncio.create_task(self._drive(self._plan.traffic), name="drive"))
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for task in done:
            task.result()

    async def _drive(self, rules: TrafficRules) -> None:
        """Publish every operation when it is due, or as soon as this process gets to it."""
        await self._shared.wait_ready()
        traffic = Traffic(rules, self._fleet)
        self._publish(traffic.first_ops(self._clock.now_us()))
        while len(self._fleet.workers()) < rules.workers:  # noqa: ASYNC110 - plain state, which nobody signals
            await asyncio.sleep(0.01)
        traffic.start(time.monotonic())
        while True:
            self._late_s = max(self._late_s, time.monotonic() - traffic.due_s)
            while traffic.due_s <= time.monotonic():
                self._publish(traffic.next_ops(self._clock.now_us()))
            await asyncio.sleep(max(0.0, traffic.due_s - time.monotonic()))

    def _publish(self, ops: list[Op]) -> None:
        began_s = time.thread_time()
        self._fold.own = True
        publish = self._fold.apply if self._plan.dry else self._shared.publish
        for op in ops:
            publish(op)
        self._fold.own = False
        self._publish_s += time.thread_time() - began_s
        self._published_ops += len(ops)

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            began_s = time.thread_time()
            expired = self._fleet.collect(self._clock.now_us())
            self._collect_s += time.thread_time() - began_s
            assert not expired, "a reservation was never released"

    async def _reporting(self) -> None:
        while True:
            await asyncio.sleep(self._plan.report_every_s)
            sys.stdout.buffer.write(msgspec.json.encode(self._report()) + b"\n")
            sys.stdout.buffer.flush()

    def _report(self) -> ReplicaReport:
        fold, watch, status = self._fold, self._watch, self._shared.status
        lags, fold.lags = fold.lags, Counter()
        late_s, self._late_s = self._late_s, 0.0
        return ReplicaReport(
            at_s=time.monotonic(),
            cpu_s=time.process_time(),
            main_s=time.thread_time(),
            tasks_s=dict(self._times.seconds),
            publish_s=self._publish_s,
            collect_s=self._collect_s,
            snapshot_s=fold.snapshot_s,
            published_ops=self._published_ops,
            applied_ops=fold.applied_ops,
            applied_entries=watch.applied_entries,
            flushes=watch.flushes,
            flushed_bytes=watch.flushed_bytes,
            snapshots=watch.snapshots,
            snapshot_bytes=watch.snapshot_bytes,
            gaps=watch.gaps,
            lost_ops=status.dropped_ops + sum(status.skipped_ops.values()),
            late_s=late_s,
            offset_us=self._clock.now_us() - time.monotonic_ns() // 1000,
            rss_bytes=_rss_bytes(),
            blocks=self._fleet.tree.blocks,
            nodes=self._fleet.tree.nodes,
            degraded=status.degraded_reason,
            sizes=container_sizes(self._shared) | container_sizes(self._fleet),
            lags=dict(lags),
        )


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _input_ended() -> None:
    await asyncio.to_thread(sys.stdin.buffer.read)


def main() -> None:
    """Run one replica."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReplicaPlan)
    uvloop.run(_Replica(plan).run())


if __name__ == "__main__":
    main()
