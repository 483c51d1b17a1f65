"""Registers are equal at all replicas soon after a failover, with any registers before.

Several replicas with the gateway's own fold, on real Valkeys.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from loadtest.chaos import TcpProxy, ValkeyServer
from policies import BytesPerToken, FleetState, Op, Placed, SettingsChanged, WorkerPut
from router.shared import Hooks, LogClock, SharedState, SharingRules

AGREE_S = 60.0
"""Replicas agree within some 4 s; the rest is for a busy machine."""


class Address(TcpProxy):
    """A virtual address that a failover moves from one server to another."""

    async def move(self, target: tuple[str, int] | str) -> None:
        self._target = target
        await self.cut()


class Replica:
    def __init__(self, name: str, url: str, namespace: str, **config: float) -> None:
        self.name = name
        self.fleet = FleetState()
        self.clock = LogClock()
        self.state = SharedState(
            SharingRules(namespace=namespace, **config),  # type: ignore[arg-type]
            url,
            name,
            self.fleet,
            self.clock,
            hooks=Hooks(on_given_up=lambda _at_us: None),
        )
        self.task = asyncio.create_task(self.state.run())

    def publish(self, op: Op) -> None:
        self.state.publish(op)

    def put(self, worker: str, *, draining: bool = False) -> None:
        self.publish(WorkerPut(worker, self.clock.now_us(), self.name, f"http://{worker}", draining=draining))

    def change(self, key: str, value: str) -> None:
        self.publish(SettingsChanged(f"{key}-{value}", self.clock.now_us(), self.name, {key: value}, "ops"))

    @property
    def knows(self) -> tuple[object, ...]:
        """Registers that must be equal at all replicas."""
        workers = [(worker.worker_id, worker.draining, worker.version) for worker in self.fleet.workers()]
        learned = list(self.fleet.registers.of(BytesPerToken))
        return workers, self.fleet.overrides.values(), learned


@asynccontextmanager
async def running(namespace: str, **urls: str) -> AsyncIterator[dict[str, Replica]]:
    replicas = {name: Replica(name, url, namespace) for name, url in urls.items()}
    async with asyncio.timeout(60):
        for replica in replicas.values():
            await replica.state.wait_ready()
    await until(lambda: all(len(each.state.status.replicas) == len(urls) for each in replicas.values()))
    yield replicas
    for replica in replicas.values():
        replica.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await replica.task


async def until(condition: Callable[[], object], timeout_s: float = AGREE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def copied(source: ValkeyServer, target: ValkeyServer) -> None:
    """Replicate all keys, as an asynchronous replica has them at the moment of a failover."""
    for key in await source.command("KEYS", "*"):
        dump = await source.command("DUMP", key)
        ttl_ms = await source.command("PTTL", key)
        if dump is not None:
            await target.command("RESTORE", key, max(int(ttl_ms), 0), dump)


@pytest.mark.parametrize("tail_lost", [pytest.param(False, marks=pytest.mark.deep), True])
async def test_what_a_replica_said_on_the_old_primary_reaches_the_others_when_it_comes_over(
    namespace: str, tail_lost: bool
) -> None:
    """A virtual address: two replicas follow the failover at once, the third one stays behind."""
    async with (
        ValkeyServer() as old,
        ValkeyServer() as new,
        Address(old.address) as one,
        Address(old.address) as others,
        running(namespace, a=one.url, b=others.url, c=others.url) as replicas,
    ):
        a, b, c = replicas.values()
        a.put("w:1")
        await until(lambda: all(each.fleet.worker("w:1") for each in (a, b, c)))
        await until(lambda: any(each.state.wrote_snapshot for each in (a, b, c)))
        await copied(old, new)
        if tail_lost:
            b.put("w:2")
            await until(lambda: a.fleet.worker("w:2") and c.fleet.worker("w:2"))
        await others.move(new.address)
        await until(lambda: b.state.status.connected and c.state.status.connected)
        a.change("placement.policy", '"min_ttft"')
        a.put("w:1", draining=True)
        b.publish(BytesPerToken("m", b.clock.now_us(), "b", 2.5))
        for number in range(130):  # for longer than acknowledged operations are kept for a second append
            a.publish(
                Placed(f"r{number}", a.clock.now_us(), "w:1", "a", 1000, 10, 20, (bytes([number]) * 8,))
            )
            await asyncio.sleep(0.05)
        await one.move(new.address)
        await until(lambda: a.knows == b.knows == c.knows and a.state.status.connected)
        worker = c.fleet.worker("w:1")
        assert worker is not None
        assert worker.draining
        assert c.fleet.overrides.values() == {"placement.policy": '"min_ttft"'}
        assert a.fleet.bytes_per_token("m", 4.0) == 2.5


async def test_what_only_one_replica_applied_is_found_and_published_again(namespace: str) -> None:
    """The entry is in no log any more: the fold of one replica alone holds it."""
    async with ValkeyServer() as server, running(namespace, **dict.fromkeys("abc", server.url)) as replicas:
        a, b, c = replicas.values()
        a.put("w:1")
        await until(lambda: a.knows == b.knows == c.knows)
        c.fleet.apply(SettingsChanged("lost", c.clock.now_us(), "gone", {"k": "1"}, "ops"))
        a.fleet.apply(BytesPerToken("m", a.clock.now_us(), "gone", 2.5))
        b.fleet.apply(WorkerPut("w:2", b.clock.now_us(), "gone", "http://w:2"))
        await until(lambda: a.knows == b.knows == c.knows)
        assert b.fleet.overrides.values() == {"k": "1"}
        assert c.fleet.worker("w:2") is not None
        assert b.fleet.bytes_per_token("m", 4.0) == 2.5
        await until(lambda: not any(each.state.status.differing for each in (a, b, c)))


async def test_labels_that_three_replicas_set_at_once_are_all_there(namespace: str) -> None:
    """60 labels of one worker, three at a time; when entries replaced each other whole, 44 were left."""
    async with ValkeyServer() as server, running(namespace, **dict.fromkeys("abc", server.url)) as replicas:
        replicas["a"].put("w:1")
        await until(lambda: all(each.fleet.worker("w:1") for each in replicas.values()))
        for number in range(20):
            for each in replicas.values():
                worker = each.fleet.worker("w:1")
                assert worker is not None
                labels = {**worker.labels, f"{each.name}{number}": "1"}
                each.publish(worker.changed(each.clock.now_us(), each.name, labels))
            await asyncio.sleep(0.002)

        def labels_of(each: Replica) -> dict[str, str]:
            worker = each.fleet.worker("w:1")
            return {} if worker is None else worker.labels

        await until(lambda: all(len(labels_of(each)) == 60 for each in replicas.values()))


async def test_registers_that_stay_different_are_told_by_name(namespace: str) -> None:
    """A fold that takes no operation of others: a defect, which the replica can only report."""
    async with ValkeyServer() as server, running(namespace, **dict.fromkeys("ab", server.url)) as replicas:
        a, b = replicas.values()
        b.fleet.handlers[BytesPerToken] = lambda _op: None
        a.publish(BytesPerToken("m", a.clock.now_us(), "a", 2.5))
        await until(lambda: a.state.status.degraded_reason)
        assert a.state.status.differing == {"BytesPerToken": ("b",)}
        assert a.state.status.degraded_reason == "registers differ from those of b: BytesPerToken"
        b.fleet.handlers[BytesPerToken] = b.fleet.registers.of(BytesPerToken).put
        await until(lambda: a.state.status.degraded_reason is None)
