"""Replicas of other versions can read a replica's vitals, too."""

import asyncio

import msgspec
import pytest
from fakes.loads import AnyKind, FakeLoads

from router.shared import Hooks, Keys, LogClock, NoListener, SharedState, SharingRules, Vitals
from router.shared.server import RedisLink
from router.shared.vitals import decoded


class NoFold:
    """Keeps nothing."""

    snapshot_version = 1
    load_reports = FakeLoads()
    handlers = AnyKind(lambda _: None)

    def apply(self, op: object) -> None:
        """Ignore."""

    def digests(self) -> dict[int, list[int]]:
        return {}

    def snapshot_steps(self) -> "list[bytes | None]":
        return [b"x"]

    def restore_steps(self, pieces: object, own: str, *, missed: bool) -> list[float]:
        return []


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (msgspec.json.encode(Vitals(version="1", inflight=3)), "1"),
        (b'{"version": "0", "address": "a:1"}', "0"),
        (b'{"version": "9", "colour": "red"}', "9"),
        (b"{}", ""),
    ],
)
def test_older_and_newer_vitals_are_understood(value: bytes, version: str) -> None:
    vitals = decoded(value)
    assert vitals is not None
    assert vitals.version == version


@pytest.mark.parametrize("value", [b"", b"nonsense", b"[]", b'{"inflight": "three"}'])
def test_what_makes_no_sense_is_nothing(value: bytes) -> None:
    assert decoded(value) is None


async def test_a_replica_knows_the_vitals_of_those_that_live(redis_url: str, namespace: str) -> None:
    """A replica with senseless vitals only counts as alive; a replica alone knows its own."""
    states = {
        name: SharedState(
            SharingRules(namespace=namespace),
            redis_url,
            name,
            NoFold(),  # type: ignore[arg-type]
            LogClock(),
            NoListener(),
            hooks=Hooks(vitals=lambda name=name: Vitals(version=name)),  # type: ignore[misc]
        )
        for name in ("one", "two")
    }
    assert await states["one"].replicas_vitals() == {"one": Vitals(version="one")}
    tasks = [asyncio.create_task(state.run()) for state in states.values()]
    link = RedisLink(redis_url, 5.0)
    try:
        async with asyncio.timeout(60):
            while len(await states["one"].replicas_vitals()) < 2:  # noqa: ASYNC110 - it is Redis's state
                await asyncio.sleep(0.01)
        found = await states["one"].replicas_vitals()
        assert found == {"one": Vitals(version="one"), "two": Vitals(version="two")}
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        await link.call("SET", Keys(namespace).replica("two"), "nonsense")
        await link.call("ZADD", Keys(namespace).replicas, 1, "two")
        async with asyncio.timeout(60):
            while (await states["one"].replicas_vitals()).get("two", Vitals()) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await link.aclose()
