"""No clock step blinds a replica: neither of Redis' clock, nor of a replica's that is an hour ahead.

Several replicas with the gateway's own fold on one real Valkey, whose clock is right. A replica's measurement
stands for a step of Redis' clock.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from loadtest.chaos import ValkeyServer
from policies import Finished, FleetState, Forget, Op, Placed, TimeSample, WorkerPut
from router.shared import Hooks, LogClock, SharedState, SharingRules

S = 1_000_000
HOUR_US = 3600 * S


class Replica:
    def __init__(self, name: str, url: str, namespace: str) -> None:
        self.name = name
        self.fleet = FleetState()
        self.clock = LogClock()
        self.placed = 0
        self.state = SharedState(
            SharingRules(namespace=namespace, heartbeat_ttl_s=6.0),
            url,
            name,
            self.fleet,
            self.clock,
            hooks=Hooks(on_given_up=lambda _at_us: None),
        )
        self.task = asyncio.create_task(self.state.run())

    def steps(self, by_us: int) -> None:
        """Measure a stepped Redis clock; the next measurement comes some seconds later."""
        now_ns = time.monotonic_ns()
        self.clock.synchronise([TimeSample(now_ns, now_ns, time.time_ns() // 1000 + by_us)])

    @property
    def skipped(self) -> int:
        """Number of operations that were skipped because their time had not come."""
        return self.state.status.skipped_ops.get("future", 0)

    @property
    def ahead_s(self) -> float:
        return (self.clock.now_us() - time.time_ns() // 1000) / S

    def place(self, path: bytes = b"\1" * 32) -> None:
        self.placed += 1
        now_us, request_id = self.clock.now_us(), f"{self.name}{self.placed}"
        self.say(Placed(request_id, now_us, "w:1", self.name, 500_000, 1000, 2000, (path,), ends=False))
        self.say(Finished(request_id, now_us + 1, now_us + 1))

    def say(self, op: Op) -> None:
        self.state.publish(op)

    def holds(self, path: bytes) -> bool:
        return bool(self.fleet.tree.match(path).parts)

    @property
    def arrivals_per_s(self) -> float:
        return float(self.fleet.loads.rates(self.clock.now_us())[0][0])


@asynccontextmanager
async def running(
    names: str, namespace: str
) -> AsyncIterator[tuple[Callable[[str], Replica], list[Replica]]]:
    replicas: list[Replica] = []
    async with ValkeyServer() as server:

        def start(name: str) -> Replica:
            replicas.append(Replica(name, server.url, namespace))
            return replicas[-1]

        for name in names:
            start(name)
        await until(lambda: all(len(each.state.status.replicas) == len(names) for each in replicas))
        replicas[0].say(WorkerPut("w:1", 1, "static", "http://w:1"))
        await until(lambda: all(each.fleet.worker("w:1") for each in replicas))
        yield start, replicas
        for replica in replicas:
            replica.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await replica.task


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_a_replica_says_an_hour_ahead_is_not_taken_and_it_comes_back(
    namespace: str,
) -> None:
    async with running("abc", namespace) as (_, (a, b, c)):
        for _ in range(20):
            b.place()
        await until(lambda: c.arrivals_per_s > 1)
        a.steps(HOUR_US)
        assert a.ahead_s > 3500
        a.place()
        a.say(Forget("w:1", a.clock.now_us()))
        await until(lambda: b.skipped and c.skipped)
        for _ in range(20):
            b.place()
        await until(lambda: c.arrivals_per_s > 1)  # the replicas with the right time go on counting
        b.place(b"\2" * 32)
        await until(lambda: c.holds(b"\2" * 32))
        await until(lambda: abs(a.ahead_s) < 2)
        a.fleet.collect(a.clock.now_us())
        a.place(b"\3" * 32)
        await until(lambda: b.holds(b"\3" * 32) and c.holds(b"\3" * 32))
        assert a.arrivals_per_s > 0, "it counts again as well"
        assert all(abs(each.ahead_s) < 2 for each in (b, c))


async def test_a_replica_that_starts_after_redis_stepped_forth_and_back_has_the_others_time(
    namespace: str,
) -> None:
    async with running("abc", namespace) as (start, replicas):
        for replica in replicas:
            replica.steps(60 * S)
        replicas[0].place(b"\1" * 32)
        await until(lambda: replicas[2].holds(b"\1" * 32))
        late = start("late")
        await until(lambda: late.ahead_s > 30)
        late.place(b"\4" * 32)
        await until(lambda: all(each.holds(b"\4" * 32) for each in replicas))
        assert not any(each.skipped for each in (*replicas, late))


async def test_of_two_replicas_the_one_behind_follows(namespace: str) -> None:
    """Neither can tell whose time is right; equal clocks decide the same, and go back together."""
    async with running("ab", namespace) as (_, (a, b)):
        a.steps(60 * S)
        await until(lambda: b.ahead_s > 30)
        a.place(b"\1" * 32)
        b.place(b"\2" * 32)
        await until(lambda: b.holds(b"\1" * 32) and a.holds(b"\2" * 32))
