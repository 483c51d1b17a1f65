"""A replica that is silent for longer than its TTL has left, unless the observer was cut off."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from policies import KIND_NAMES, Left
from router.shared import EmbeddedValkey
from router.shared.agreement import Agreement
from router.shared.clock import LogClock
from router.shared.heartbeat import VALUE_BYTES_MAX, Heartbeat
from router.shared.keys import Keys
from router.shared.server import RedisLink, RedisLost, RedisRefused

EPOCH_US = 1_700_000_000_000_000
TTL_S = 3.0


class Watch:
    """A heartbeat on a clock that the test moves; its key in Redis expires only by hand."""

    def __init__(self, name: str, namespace: str) -> None:
        self.ns = 0
        self.log_ns = 0  # how far log time is ahead of this replica's monotonic clock
        self.lefts: list[Left] = []
        self.vitals = self.digests = 0
        self.heartbeat = Heartbeat(
            name,
            Keys(namespace),
            LogClock(lambda: self.ns + self.log_ns, lambda: EPOCH_US * 1000),
            self.lefts.append,
            ttl_s=TTL_S,
            value=self._vitals,
            digests=self._digests,
            monotonic_s=lambda: self.ns / 1e9,
        )

    def _vitals(self) -> bytes:
        self.vitals += 1
        return b"{}"

    def _digests(self) -> bytes:
        self.digests += 1
        return b"shown"

    def pass_s(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)

    async def beats_for_s(self, seconds: float, link: RedisLink) -> None:
        """Beat four times in this time, the last time at its end."""
        for _ in range(4):
            self.pass_s(seconds / 4)
            await self.heartbeat.beat(link)


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_url, 5.0)
    yield link
    await link.aclose()


async def test_replicas_see_each_other(link: RedisLink, namespace: str) -> None:
    a, b = Watch("a", namespace), Watch("b", namespace)
    await a.heartbeat.beat(link)
    await b.heartbeat.beat(link)
    assert a.heartbeat.replicas == ("a",)
    assert b.heartbeat.replicas == ("a", "b")
    assert a.heartbeat.siblings == 0
    assert b.heartbeat.siblings == 1
    assert 0 < await link.call("PTTL", Keys(namespace).replica("a")) <= TTL_S * 1000


async def test_a_sibling_whose_key_expired_has_left_at_its_last_beat_plus_ttl(
    link: RedisLink, namespace: str
) -> None:
    a, b = Watch("a", namespace), Watch("b", namespace)
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    await link.call("DEL", Keys(namespace).replica("b"))
    await a.beats_for_s(TTL_S + 0.1, link)
    assert a.lefts == [Left("b", EPOCH_US + 3_000_000)]
    assert a.heartbeat.replicas == ("a",)
    await a.heartbeat.beat(link)
    assert len(a.lefts) == 1
    assert a.heartbeat.lost == ("b",)


async def test_a_replica_that_fell_silent_is_remembered_until_it_is_back_or_for_ten_minutes(
    link: RedisLink, namespace: str
) -> None:
    a, b = Watch("a", namespace), Watch("b", namespace)
    for number in range(20):
        a.heartbeat.fell_silent(Left(f"gone-{number:02}", EPOCH_US + number))
    a.heartbeat.fell_silent(Left("b", EPOCH_US))
    assert len(a.heartbeat.lost) == 16
    assert a.heartbeat.lost[0] == "b"

    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    assert "b" not in a.heartbeat.lost
    a.pass_s(601)
    assert a.heartbeat.lost == ()


async def test_a_sibling_whose_key_lives_is_alive_whatever_its_last_beat(
    link: RedisLink, namespace: str
) -> None:
    a, b = Watch("a", namespace), Watch("b", namespace)
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    await a.beats_for_s(2 * TTL_S, link)
    assert not a.lefts


async def test_a_log_clock_that_jumps_makes_nobody_leave(link: RedisLink, namespace: str) -> None:
    """A minute ahead of the sibling, whose key has expired: the observer saw its time change just now."""
    a, b = Watch("a", namespace), Watch("b", namespace)
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    await a.beats_for_s(TTL_S - 0.1, link)
    a.pass_s(0.1)
    a.log_ns = 60_000_000_000
    b.pass_s(0.5)
    await b.heartbeat.beat(link)
    await link.call("DEL", Keys(namespace).replica("b"))
    await a.heartbeat.beat(link)
    a.pass_s(TTL_S - 0.1)
    await a.heartbeat.beat(link)
    assert not a.lefts
    a.pass_s(0.2)
    await a.heartbeat.beat(link)
    assert a.lefts == [Left("b", EPOCH_US + 500_000 + 3_000_000)]


async def test_a_sibling_whose_clock_is_far_ahead_leaves_all_the_same(
    link: RedisLink, namespace: str
) -> None:
    a, b = Watch("a", namespace), Watch("b", namespace)
    b.log_ns = 3_600_000_000_000
    await b.heartbeat.beat(link)
    await link.call("DEL", Keys(namespace).replica("b"))
    await a.heartbeat.beat(link)
    await a.beats_for_s(TTL_S, link)
    assert a.lefts == [Left("b", EPOCH_US + 3_600_000_000 + 3_000_000)]


async def test_a_log_that_may_not_be_appended_to_is_noticed_and_nothing_is_written(tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path) as server:
        link = RedisLink(server.url, 5.0)
        a = Watch("a", "ns")
        await a.heartbeat.beat(link)
        assert not await link.call("EXISTS", Keys("ns").probe, Keys("ns").log)
        await link.call("ACL", "SETUSER", "default", "-xadd")
        with pytest.raises(RedisRefused, match="NOPERM"):
            await a.heartbeat.beat(link)
        await link.aclose()


@pytest.mark.parametrize("kind", ["probe", "replicas", "log"])
async def test_a_key_of_another_type_can_be_removed_and_one_of_ours_stays(
    link: RedisLink, namespace: str, kind: str
) -> None:
    keys, a = Keys(namespace), Watch("a", namespace)
    key = f"cw:{{{namespace}}}:{kind}"
    await a.heartbeat.beat(link)
    await link.call("DEL", key)
    await link.call("SET", key, "junk")
    await a.heartbeat.remove_foreign(link)
    assert not await link.call("EXISTS", key)
    await a.heartbeat.beat(link)
    await link.call("XADD", keys.log, "*", "v", 1)
    await a.heartbeat.remove_foreign(link)
    assert await link.call("EXISTS", keys.log, keys.replicas) == 2


async def test_who_was_cut_off_judges_nobody_before_a_whole_ttl(link: RedisLink, namespace: str) -> None:
    """After an outage all keys have expired; the others need time to come back."""
    a, b = Watch("a", namespace), Watch("b", namespace)
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    await link.call("DEL", Keys(namespace).replica("b"))
    a.pass_s(60)
    nowhere = RedisLink("unix:///nonexistent/valkey.sock", 0.5)
    with pytest.raises(RedisLost):
        await a.heartbeat.beat(nowhere)
    await a.heartbeat.beat(link)
    a.pass_s(TTL_S - 0.1)
    await a.heartbeat.beat(link)
    assert not a.lefts
    a.pass_s(0.2)
    await a.heartbeat.beat(link)
    assert [op.replica for op in a.lefts] == ["b"]


async def test_who_paused_judges_nobody_before_a_whole_ttl(link: RedisLink, namespace: str) -> None:
    """Its siblings on the same host paused as well, and the first to wake finds their keys expired."""
    a, b = Watch("a", namespace), Watch("b", namespace)
    await b.heartbeat.beat(link)
    await a.beats_for_s(2 * TTL_S, link)
    await link.call("DEL", Keys(namespace).replica("b"))
    a.pass_s(TTL_S + 0.1)
    await a.heartbeat.beat(link)
    assert not a.lefts
    await a.beats_for_s(TTL_S, link)
    assert [op.replica for op in a.lefts] == ["b"]


async def test_what_the_log_says_is_not_said_again(link: RedisLink, namespace: str) -> None:
    a, b = Watch("a", namespace), Watch("b", namespace)
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    a.heartbeat.left(Left("b", EPOCH_US - 1))
    assert list(a.heartbeat.replicas) == ["a", "b"]
    a.heartbeat.left(Left("b", EPOCH_US))
    assert list(a.heartbeat.replicas) == ["a"]


async def test_goodbye_leaves_nothing(link: RedisLink, namespace: str) -> None:
    a = Watch("a", namespace)
    await a.heartbeat.beat(link)
    await a.heartbeat.goodbye(link)
    keys = Keys(namespace)
    assert await link.call("EXISTS", keys.replica("a"), keys.replicas) == 0


async def test_a_former_life_shows_until_it_has_said_goodbye(link: RedisLink, namespace: str) -> None:
    a = Watch("a", namespace)
    assert not await a.heartbeat.has_beaten(link)
    await a.heartbeat.beat(link)
    assert await Watch("a", namespace).heartbeat.has_beaten(link)
    await a.heartbeat.goodbye(link)
    assert not await Watch("a", namespace).heartbeat.has_beaten(link)


@pytest.mark.parametrize(
    ("member", "score"),
    [
        *((b"\xff\xfe", "5"), (b"", "5"), (b"x" * 300, "5"), ("\u2028".encode(), "5")),
        *((b"evil", "inf"), (b"evil", "-inf"), (b"evil", "1e300"), (b"evil", "-5"), (b"evil", "9e15")),
    ],
)
async def test_what_no_replica_says_of_itself_makes_no_replica(
    link: RedisLink, namespace: str, member: bytes, score: str
) -> None:
    a, b = Watch("a", namespace), Watch("b", namespace)
    await b.heartbeat.beat(link)
    await link.call("ZADD", Keys(namespace).replicas, score, member)
    await a.heartbeat.beat(link)
    await a.beats_for_s(TTL_S + 0.1, link)
    assert (a.heartbeat.replicas, a.lefts) == (("a", "b"), [])


async def test_shortened_placements_are_for_replicas_that_all_read_them(
    link: RedisLink, namespace: str
) -> None:
    """The second beat of ``b`` comes from an older version, which continued under its id."""
    a, b, keys = Watch("a", namespace), Watch("b", namespace), Keys(namespace)
    await a.heartbeat.beat(link)
    assert not a.heartbeat.onward, "nobody else reads"
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    assert not a.heartbeat.onward, "it is known, and what it reads with the next beat"
    await a.heartbeat.beat(link)
    assert a.heartbeat.onward
    await link.call("ZADD", keys.replicas, EPOCH_US + 1, "b")
    await a.heartbeat.beat(link)
    assert not a.heartbeat.onward
    await link.call("HSET", keys.onward, "b", "nonsense")
    await a.heartbeat.beat(link)
    assert not a.heartbeat.onward
    b.pass_s(1)
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    assert a.heartbeat.onward
    await b.heartbeat.goodbye(link)
    assert await link.call("HKEYS", keys.onward) == [b"a"]


async def test_each_new_process_of_a_sibling_is_noticed_once(link: RedisLink, namespace: str) -> None:
    a = Watch("a", namespace)
    await a.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    assert a.heartbeat.joined == 0
    for times in (1, 2):
        b = Watch("b", namespace)
        for _ in range(3):
            await b.heartbeat.beat(link)
            await a.heartbeat.beat(link)
        assert a.heartbeat.joined == times


async def test_load_vectors_are_for_replicas_that_all_read_them(link: RedisLink, namespace: str) -> None:
    """An older version writes nothing after its process, or no field in the hash; then it leaves."""
    a, b, keys = Watch("a", namespace), Watch("b", namespace), Keys(namespace)
    await a.heartbeat.beat(link)
    assert a.heartbeat.reads_vectors
    await b.heartbeat.beat(link)
    for _ in range(2):  # the first beat finds the sibling, the second one asks for its fields
        await a.heartbeat.beat(link)
        assert a.heartbeat.reads_vectors
    await link.call("ZADD", keys.replicas, EPOCH_US + 1, "old")
    await a.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    assert not a.heartbeat.reads_vectors
    await link.call("HSET", keys.onward, "old", b"%d abcdef12" % (EPOCH_US + 1))
    await a.heartbeat.beat(link)
    assert (a.heartbeat.reads_vectors, a.heartbeat.onward) == (False, True)
    a.heartbeat.left(Left("old", EPOCH_US + 1))
    await link.call("ZREM", keys.replicas, "old")
    await a.heartbeat.beat(link)
    assert a.heartbeat.reads_vectors


async def sent_bytes(link: RedisLink) -> int:
    """Bytes that the server has sent to all its clients."""
    info: bytes = await link.call("INFO", "stats")
    return int(info.split(b"total_net_output_bytes:")[1].split()[0])


async def test_fields_that_no_sibling_wrote_are_not_sent(link: RedisLink, namespace: str) -> None:
    """100,000 fields are some 4 MB, which each beat of each replica would bring back."""
    a, b, keys = Watch("a", namespace), Watch("b", namespace), Keys(namespace)
    for key in (keys.onward, keys.digests):
        fields = [part for number in range(100_000) for part in (f"foreign-{number}", "some value")]
        await link.call("HSET", key, *fields)
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    before = await sent_bytes(link)
    await a.heartbeat.beat(link)
    assert await sent_bytes(link) - before < 20_000
    assert a.heartbeat.onward
    assert a.heartbeat.shown == {"b": b"shown"}


async def test_a_value_that_no_replica_would_write_is_not_looked_at_and_the_next_one_is(
    link: RedisLink, namespace: str
) -> None:
    a, b, keys = Watch("a", namespace), Watch("b", namespace), Keys(namespace)
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    huge = b"%d %s" % (EPOCH_US, bytes(10_000_000))
    await link.call("HSET", keys.onward, "b", huge)
    await link.call("HSET", keys.digests, "b", huge)
    await a.heartbeat.beat(link)
    assert (a.heartbeat.onward, a.heartbeat.shown) == (False, {})
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    assert (a.heartbeat.onward, a.heartbeat.shown) == (True, {"b": b"shown"})


async def test_the_digests_of_all_kinds_of_register_are_far_below_the_longest_value() -> None:
    digests = dict.fromkeys(KIND_NAMES, 2**64 - 1)
    agreement = Agreement("a", lambda: {tag: [value] for tag, value in digests.items()})
    assert len(agreement.shown(ready=True)) < VALUE_BYTES_MAX / 4


async def test_vitals_and_digests_are_taken_for_each_beat_in_company_and_seldom_without(
    link: RedisLink, namespace: str
) -> None:
    """Alone, beats of nine seconds take them at 0 and 5 s; a newcomer is found by the beat after its own."""
    a, b = Watch("a", namespace), Watch("b", namespace)
    for _ in range(10):
        await a.heartbeat.beat(link)
        a.pass_s(1.0)
    assert (a.vitals, a.digests) == (2, 2)
    await b.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    assert a.vitals == 3, "they were five seconds old"
    await a.heartbeat.beat(link)
    await a.heartbeat.beat(link)
    assert (a.vitals, a.digests) == (5, 5)
