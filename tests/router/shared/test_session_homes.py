"""The last workers of sessions reach all replicas, on a real server; without one, no replica waits."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from fakes.running import until
from redis import Redis

from router.session_rules import SessionRules
from router.shared.keys import Keys
from router.shared.session_homes import (
    BATCH_MAX,
    DUE_MAX,
    ENTRIES_MAX,
    ENTRY_BYTES_MAX,
    SessionHomes,
    entry_of,
    homes_in,
)

NOWHERE = "redis://127.0.0.1:1"


class Replica:
    """The homes of a replica, and what it heard."""

    def __init__(self, homes: SessionHomes) -> None:
        self.homes = homes
        self.heard: dict[int, str] = {}
        self.ages: list[float] = []
        self.task = asyncio.create_task(homes.run(self._hear))

    def _hear(self, session: int, worker_id: str, age_s: float) -> None:
        self.heard[session] = worker_id
        self.ages.append(age_s)


Make = Callable[..., Replica]


@pytest.fixture
async def make(redis_url: str, namespace: str) -> AsyncIterator[Make]:
    """Start the homes of a replica."""
    replicas = []

    def start(name: str = "r1", url: str = redis_url, now_us: int | None = None, **rules: float) -> Replica:
        homes = SessionHomes(
            SessionRules(**rules),  # type: ignore[arg-type]
            url,
            Keys(namespace),
            name,
            lambda: time.time_ns() // 1000 if now_us is None else now_us,
        )
        replicas.append(Replica(homes))
        return replicas[-1]

    yield start
    for replica in replicas:
        replica.task.cancel()
    await asyncio.gather(*(replica.task for replica in replicas), return_exceptions=True)


def degraded(caplog: pytest.LogCaptureFixture) -> int:
    return sum("sessions are not shared" in each.message for each in caplog.records)


async def test_every_replica_hears_where_a_session_is_and_when_it_ends(make: Make) -> None:
    one, other = make("r1"), make("r2")
    one.homes.tell(1, "w1:80")
    one.homes.tell(2**64 - 1, "w2:80")
    await until(lambda: other.heard == {1: "w1:80", 2**64 - 1: "w2:80"})
    other.homes.tell(1, "")
    await until(lambda: one.heard == other.heard == {1: "", 2**64 - 1: "w2:80"})
    assert one.homes.dropped == other.homes.dropped == 0


async def test_a_replica_that_starts_later_hears_what_was_told(make: Make) -> None:
    one = make("r1")
    for number in range(3):
        one.homes.tell(7, f"w{number}:80")
        await until(lambda number=number: one.heard.get(7) == f"w{number}:80")
    later = make("r2")
    await until(lambda: later.heard == {7: "w2:80"})


async def test_replicas_that_speak_at_once_agree_in_the_end(make: Make) -> None:
    replicas = [make(f"r{number}") for number in range(4)]
    for number, replica in enumerate(replicas):
        for session in range(50):
            replica.homes.tell(session, f"w{(number + session) % 4}:80")
    await until(lambda: all(len(each.ages) >= 150 and not each.homes.due for each in replicas))
    await until(lambda: all(each.heard == replicas[0].heard for each in replicas))


async def test_many_sessions_are_told_in_few_entries(make: Make, redis_url: str, namespace: str) -> None:
    one, other = make("r1"), make("r2")
    for session in range(2_000):
        one.homes.tell(session, f"w{session % 3}:80")
    await until(lambda: len(other.heard) == 2_000)
    with Redis.from_url(redis_url) as redis:
        assert redis.xlen(Keys(namespace).sessions) <= 2_000 // BATCH_MAX + 2
        assert redis.ttl(Keys(namespace).sessions) > 0


async def test_the_stream_ends_by_itself(make: Make, redis_url: str, namespace: str) -> None:
    one = make(session_ttl_s=0.05)
    one.homes.tell(1, "w1:80")
    await until(lambda: not one.homes.due)
    with Redis.from_url(redis_url) as redis:
        await until(lambda: not redis.exists(Keys(namespace).sessions))


async def test_the_stream_is_bounded(make: Make, redis_url: str, namespace: str) -> None:
    key = Keys(namespace).sessions
    with Redis.from_url(redis_url) as redis:
        pipe = redis.pipeline()
        for session in range(3 * ENTRIES_MAX):
            pipe.xadd(key, {"h": entry_of([(session, "w1:80")])})
        pipe.execute()
        one = make()
        one.homes.tell(1, "w9:80")
        await until(lambda: one.heard.get(1) == "w9:80")
        assert redis.xlen(key) < 2 * ENTRIES_MAX


async def test_the_age_of_a_word_is_told(make: Make, redis_url: str, namespace: str) -> None:
    with Redis.from_url(redis_url) as redis:
        for at_ms, session in ((10_000, 1), (60_000, 2)):
            redis.xadd(Keys(namespace).sessions, {"h": entry_of([(session, "w1:80")])}, id=f"{at_ms}-1")
    one = make(now_us=50_000_000)
    await until(lambda: len(one.heard) == 2)
    assert one.ages == [40.0, 0.0]


async def test_turned_off_nothing_is_told_or_heard(make: Make) -> None:
    off, on = make("r1", sessions_max=0), make("r2")
    off.homes.tell(1, "w1:80")
    on.homes.tell(2, "w2:80")
    await until(lambda: on.heard == {2: "w2:80"})
    assert (off.homes.due, off.heard) == (0, {})
    off.homes.use(SessionRules())
    await until(lambda: off.heard == {2: "w2:80"})


async def test_without_redis_words_wait_and_are_bounded(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        one = make(url=NOWHERE)
        for session in range(DUE_MAX + 5):
            one.homes.tell(session, "w1:80")
        one.homes.tell(3, "w2:80")
        assert (one.homes.due, one.homes.dropped) == (DUE_MAX, 5)
        await until(lambda: one.homes.due == DUE_MAX and degraded(caplog) == 1)
    assert not one.task.done()


async def test_a_replica_that_only_hears_says_so_if_it_cannot(
    make: Make, redis_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), Redis.from_url(redis_url) as redis:
        redis.set(Keys(namespace).sessions, "mine")
        make()
        await until(lambda: degraded(caplog) == 1)
        redis.delete(Keys(namespace).sessions)
        await until(lambda: any("replicas share sessions again" in each.message for each in caplog.records))


async def test_what_redis_did_not_take_is_told_later(
    make: Make, redis_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The key has a type that takes no entries, then it is gone; the newest word of a session counts."""
    with caplog.at_level(logging.INFO), Redis.from_url(redis_url) as redis:
        redis.set(Keys(namespace).sessions, "mine")
        one, other = make("r1"), make("r2")
        one.homes.tell(1, "w1:80")
        await until(lambda: degraded(caplog) > 0)
        one.homes.tell(1, "w2:80")
        redis.delete(Keys(namespace).sessions)
        await until(lambda: other.heard == {1: "w2:80"})
        await until(lambda: any("replicas share sessions again" in each.message for each in caplog.records))


async def test_what_others_wrote_is_passed_over(make: Make, redis_url: str, namespace: str) -> None:
    key, encode = Keys(namespace).sessions, msgspec.msgpack.encode
    strange: list[dict[str, bytes]] = [
        {"x": b"1"},
        {"h": b"\xc1"},
        {"h": encode([1, 2])},
        {"h": encode({"w1:80": "text"})},
        {"h": encode({"w" * 600: b"12345678"})},
        {"h": encode({"w1:80": b"x" * (BATCH_MAX * 8 + 8)})},
        {"h": b"x" * (ENTRY_BYTES_MAX + 1)},
        {"h": encode({"w1:80": b"1234567"})},
        {"h": entry_of([(5, "w1:80")]), "more": b"1"},
    ]
    with Redis.from_url(redis_url) as redis:
        for fields in strange:
            redis.xadd(key, fields)  # type: ignore[arg-type]
        redis.xadd(key, {"h": entry_of([(6, "w1:80")])})
    one = make()
    await until(lambda: 6 in one.heard)
    assert one.heard == {6: "w1:80"}


@pytest.mark.parametrize("fields", [None, [], [b"h"], b"h", [b"h", None], [b"h", b"", b"h", b""]])
def test_an_entry_of_another_shape_says_nothing(fields: object) -> None:
    assert homes_in(fields) == {}


def test_an_entry_is_read_as_it_was_written() -> None:
    said = homes_in([b"h", entry_of([(1, "a"), (2, "b"), (3, "a"), (4, "")])])
    assert {worker: len(sessions) // 8 for worker, sessions in said.items()} == {"a": 2, "b": 1, "": 1}
