"""One replica of the shared log's soak: the gateway's shared state without the gateway, watching itself.

A child of `loadtest.bench.log`: it gets a `ReplicaPlan`, shares a real `FleetState` through a real
`SharedState`, publishes its traffic, and says a `ReplicaReport` every few seconds until its input ends.
Reports count from the start of the process. The lag of a sibling's operation is the log time of its
application less the log time that its publisher stamped on it.
"""

import asyncio
import os
import time
from collections import Counter
from dataclasses import replace

import msgspec

from loadtest.bench.child import input_ended, say
from loadtest.bench.log_traffic import Traffic, TrafficRules
from loadtest.bench.process_tree import rss_bytes
from loadtest.bench.sizes import container_sizes
from policies import Finished, FirstToken, FleetState, Op, Placed
from router.shared import LogClock, NoListener, SharedState, SharingRules

LAG_BIN_US = 100
HOUSEKEEPING_S = 1.0
"""As in the gateway."""

NEVER_S = 1e9


class ReplicaPlan(msgspec.Struct, frozen=True):
    """Part of one replica; without ``traffic`` it publishes nothing and writes no snapshots."""

    url: str
    namespace: str
    replica: str
    report_every_s: float
    traffic: TrafficRules | None = None


class ReplicaReport(msgspec.Struct, frozen=True):
    """Figures of one replica.

    Attributes:
        at_s: Monotonic seconds.
        loop_s: CPU of the event loop's thread, without housekeeping and reports.
        applied_requests: Placements of others that were applied with a prompt.
        gaps: Parts of the log that were gone before they were read.
        late_s: Largest delay behind its calendar since the last report.
        offset_us: Log time less monotonic time: equal in all processes of one host if clocks agree.
        sizes: Length of every container (`loadtest.bench.sizes`), and of the tree.
        lags: Replication lags since the last report, in bins of `LAG_BIN_US`.
    """

    at_s: float
    cpu_s: float
    loop_s: float
    published_ops: int
    applied_ops: int
    applied_requests: int
    gaps: int
    lost_ops: int
    late_s: float
    offset_us: int
    rss_bytes: int
    degraded: str | None
    sizes: dict[str, int]
    lags: dict[int, int]


class _Gaps(NoListener):
    def __init__(self) -> None:
        self.count = 0

    def gap(self) -> None:
        self.count += 1


class _WatchedFleet(FleetState):
    """A fleet that looks at the clock for every operation of a sibling."""

    def __init__(self, clock: LogClock, replica: str) -> None:
        super().__init__(own=replica)
        self._clock = clock
        self.own = False
        self.applied_ops = self.applied_requests = 0
        self.lags: Counter[int] = Counter()

    def apply(self, op: Op) -> None:
        super().apply(op)
        if self.own:
            return
        self.applied_ops += 1
        if type(op) is Placed and op.paths:
            self.applied_requests += 1
        if isinstance(op, Placed | FirstToken | Finished):
            self.lags[(self._clock.now_us() - op.at_us) // LAG_BIN_US] += 1


class _Replica:
    def __init__(self, plan: ReplicaPlan) -> None:
        self._plan = plan
        self._clock = LogClock()
        self._fleet = _WatchedFleet(self._clock, plan.replica)
        self._gaps = _Gaps()
        rules = SharingRules(namespace=plan.namespace)
        if plan.traffic is None:
            rules = replace(rules, snapshot_interval_s=NEVER_S)
        self._shared = SharedState(rules, plan.url, plan.replica, self._fleet, self._clock, self._gaps)
        self._aside_s = self._late_s = 0.0
        self._published_ops = 0

    async def run(self) -> None:
        """Share, publish and report until the input ends, or something fails."""
        loops = [self._shared.run(), self._housekeeping(), self._reporting(), input_ended()]
        if self._plan.traffic is not None:
            loops.append(self._drive(self._plan.traffic))
        tasks = [asyncio.create_task(loop) for loop in loops]
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
        while len(self._fleet.workers()) < rules.workers:  # noqa: ASYNC110 - plain state without a signal
            await asyncio.sleep(0.01)
        traffic.start(time.monotonic())
        while True:
            self._late_s = max(self._late_s, time.monotonic() - traffic.due_s)
            while traffic.due_s <= time.monotonic():
                self._publish(traffic.next_ops(self._clock.now_us()))
            await asyncio.sleep(max(0.0, traffic.due_s - time.monotonic()))

    def _publish(self, ops: list[Op]) -> None:
        self._fleet.own = True
        for op in ops:
            self._shared.publish(op)
        self._fleet.own = False
        self._published_ops += len(ops)

    async def _housekeeping(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            began_s = time.thread_time()
            expired = self._fleet.collect(self._clock.now_us())
            self._aside_s += time.thread_time() - began_s
            assert not expired, "a reservation was never released"

    async def _reporting(self) -> None:
        while True:
            await asyncio.sleep(self._plan.report_every_s)
            began_s = time.thread_time()
            say(self._report())
            self._aside_s += time.thread_time() - began_s

    def _report(self) -> ReplicaReport:
        fleet, status = self._fleet, self._shared.status
        lags, fleet.lags = fleet.lags, Counter()
        late_s, self._late_s = self._late_s, 0.0
        tree = {"tree blocks": fleet.tree.blocks, "tree nodes": fleet.tree.nodes}
        return ReplicaReport(
            at_s=time.monotonic(),
            cpu_s=time.process_time(),
            loop_s=time.thread_time() - self._aside_s,
            published_ops=self._published_ops,
            applied_ops=fleet.applied_ops,
            applied_requests=fleet.applied_requests,
            gaps=self._gaps.count,
            lost_ops=status.dropped_ops + sum(status.skipped_ops.values()),
            late_s=late_s,
            offset_us=self._clock.now_us() - time.monotonic_ns() // 1000,
            rss_bytes=rss_bytes(os.getpid()),
            degraded=status.degraded_reason,
            sizes=tree | container_sizes(self._shared) | container_sizes(fleet),
            lags=dict(lags),
        )


async def share(plan: ReplicaPlan) -> None:
    """Be one replica."""
    await _Replica(plan).run()
