"""A snapshot is written by the holder of the lease only, whole or not at all, and believed only if sound."""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis import Redis

from router.shared import EmbeddedValkey
from router.shared.keys import Keys
from router.shared.ports import NoListener
from router.shared.server import RedisLink
from router.shared.snapshot import GRACE_S, PIECES_TTL_S, SnapshotHead, SnapshotStore
from router.shared.streams import StreamId, parse_id, stream_id

VERSION = 7
COVERED = (1_700_000_000_000, 3)
AT_US = 1_700_000_000_500_000


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_url, 5.0)
    yield link
    await link.aclose()


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    """Changes things between two steps, which are synchronous."""
    with Redis.from_url(redis_url) as client:
        yield client


class Refusals(NoListener):
    """Remembers why snapshots were refused."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def snapshot_refused(self, reason: str) -> None:
        self.reasons.append(reason)


async def nothing() -> None:
    """No operations of its own wait to be sent."""


class Store(SnapshotStore):
    """A store whose refusals are remembered, and that reads and writes with fewer words."""

    def __init__(self, namespace: str, writer: bytes = b"a/1", version: int = VERSION) -> None:
        self.refusals = Refusals()
        super().__init__(writer, Keys(namespace), self.refusals, trim_margin_s=10.0, version=version)

    async def written(
        self, link: RedisLink, *pieces: bytes | None, covered: StreamId = COVERED, mark: bool = False
    ) -> SnapshotHead | None:
        assert await self.acquire(link)
        return await self.write(link, covered, AT_US, iter(pieces), nothing, mark=mark)

    async def pieces(self, link: RedisLink) -> list[bytes] | None:
        snapshot = await self.read(link, lambda _: None)
        return None if snapshot is None else snapshot.pieces


def piece_keys(namespace: str, *heads: SnapshotHead | None) -> list[str]:
    return [Keys(namespace).pieces(head.name) for head in heads if head is not None]


@pytest.mark.parametrize("pieces", [[], [b""], [b"one"], [b"one", b"two" * 100_000, b""]])
async def test_what_is_written_is_read(link: RedisLink, namespace: str, pieces: list[bytes]) -> None:
    store = Store(namespace)
    assert await store.pieces(link) is None
    assert await store.head(link) is None
    steps = itertools.chain.from_iterable((None, piece, None) for piece in pieces)
    head = await store.written(link, *steps)
    assert head is not None
    assert (head.covered, head.at_us, head.size_bytes) == (COVERED, AT_US, sum(map(len, pieces)))
    shares: list[float] = []
    snapshot = await Store(namespace, b"b/1").read(link, shares.append)
    assert snapshot is not None
    assert (snapshot.head, snapshot.pieces) == (head, pieces)
    assert shares == [(number + 1) / len(pieces) for number in range(len(pieces))]
    assert await store.head(link) == head
    assert not store.refusals.reasons


async def test_the_lease_is_exclusive_until_it_is_given_back(link: RedisLink, namespace: str) -> None:
    a, b = Store(namespace, b"a/1"), Store(namespace, b"b/1")
    assert await a.acquire(link)
    assert not await b.acquire(link)
    assert await a.acquire(link)
    assert await a.written(link, b"by a")
    assert await b.acquire(link)


async def test_the_lease_is_extended_with_every_piece(link: RedisLink, namespace: str, redis: Redis) -> None:
    lease, left_ms = Keys(namespace).lease, list[int]()

    def steps() -> Iterator[bytes | None]:
        for _ in range(2):
            redis.pexpire(lease, 2_000)
            yield b"piece"
            left_ms.append(redis.pttl(lease))

    store = Store(namespace)
    await store.acquire(link)
    await store.write(link, COVERED, AT_US, steps(), nothing, mark=False)
    assert len(left_ms) == 2
    assert min(left_ms) > 2_000


async def test_who_lost_the_lease_before_the_first_piece_writes_nothing(
    link: RedisLink, namespace: str
) -> None:
    a, b = Store(namespace, b"a/1"), Store(namespace, b"b/1")
    assert await a.acquire(link)
    await link.call("DEL", Keys(namespace).lease)  # as if it had expired
    assert await b.written(link, b"by b")
    assert await a.write(link, COVERED, AT_US, iter([b"by a, too late"]), nothing, mark=False) is None
    assert await b.pieces(link) == [b"by b"]


@pytest.mark.parametrize("lost", ["lease", "pieces"])
async def test_who_lost_something_on_the_way_leaves_the_snapshot_before_in_place(
    link: RedisLink, namespace: str, lost: str, redis: Redis
) -> None:
    """Its pieces vanish by themselves, since no head ever pointed to them."""
    store = Store(namespace)
    before = await store.written(link, b"before")

    def steps() -> Iterator[bytes | None]:
        yield b"first"
        keys = [key for key in redis.keys(f"cw:{{{namespace}}}:*") if b":snap:" in key]
        new = [key for key in keys if key.decode() not in piece_keys(namespace, before)]
        assert 0 < redis.pttl(new[0]) <= PIECES_TTL_S * 1000
        if lost == "lease":
            redis.delete(Keys(namespace).lease)
        else:
            redis.delete(*new)
        yield None

    await store.acquire(link)
    assert await store.write(link, COVERED, AT_US, steps(), nothing, mark=False) is None
    assert await store.pieces(link) == [b"before"]
    assert await store.head(link) == before


async def test_who_has_not_read_what_the_snapshot_before_covers_does_not_replace_it(
    link: RedisLink, namespace: str
) -> None:
    """The log behind that one is trimmed: newcomers would miss what lies between."""
    store = Store(namespace)
    await link.call("XADD", Keys(namespace).log, stream_id(COVERED), "v", 1)
    before = await store.written(link, b"before")
    assert await store.written(link, b"late", covered=(COVERED[0], COVERED[1] - 1)) is None
    assert await store.written(link, b"late", covered=(COVERED[0] - 1, COVERED[1] + 9)) is None
    assert await store.head(link) == before
    assert await store.acquire(link)  # the lease was given back all the same
    await store.refuse(link, before, "damaged")
    assert await store.written(link, b"late", covered=(COVERED[0] - 1, 0))


async def test_who_has_not_merged_what_a_mark_asks_for_does_not_replace_it(
    link: RedisLink, namespace: str
) -> None:
    store, other, log = Store(namespace), Store(namespace, b"b/1"), Keys(namespace).log
    read = parse_id(await link.call("XADD", log, "*", "v", 1, "r", b"c/1", "o", b""))
    before = await store.written(link, b"what the log does not say", covered=read, mark=True)
    ((mark, fields),) = await link.call("XRANGE", log, f"({read[0]}-{read[1]}", "+")
    assert fields == [b"v", b"1", b"r", b"a/1", b"s", str(AT_US).encode()]
    assert await other.written(link, b"without it", covered=read) is None
    assert await store.head(link) == before
    assert await other.written(link, b"with it", covered=parse_id(mark))
    last = parse_id(mark)
    assert await store.written(link, b"unmarked again", covered=(last[0], last[1] + 1))


async def test_the_log_behind_a_snapshot_is_trimmed_however_long_it_is(
    link: RedisLink, namespace: str
) -> None:
    """Redis trims whole nodes, of 100 entries."""
    log = Keys(namespace).log
    append = "for n = 1, 25000 do redis.call('XADD', KEYS[1], '1000-' .. n, 'o', '') end"
    await link.call("EVAL", append, 1, log)
    assert await Store(namespace).written(link, b"piece")
    assert await link.call("XLEN", log) <= 100


async def test_own_operations_are_sent_before_the_snapshot_that_includes_them_counts(
    link: RedisLink, namespace: str
) -> None:
    """Else only those who start from it would ever know them, should the writer die."""
    store, heads = Store(namespace), list[SnapshotHead | None]()
    said: list[str] = []

    def steps() -> Iterator[bytes | None]:
        yield b"piece"
        said.append("last step")

    async def flush() -> None:
        said.append("flushed")
        heads.append(await store.head(link))

    assert await store.acquire(link)
    assert await store.write(link, COVERED, AT_US, steps(), flush, mark=False)
    assert said == ["last step", "flushed"]
    assert heads == [None]


async def test_the_pieces_before_stay_for_a_while_and_the_new_ones_for_good(
    link: RedisLink, namespace: str
) -> None:
    store = Store(namespace)
    heads = [await store.written(link, b"one"), await store.written(link, b"two")]
    old, new = [await link.call("PTTL", key) for key in piece_keys(namespace, *heads)]
    assert 0 < old <= GRACE_S * 1000
    assert new == -1


async def test_a_snapshot_that_is_replaced_while_it_is_read_is_read_again(
    link: RedisLink, namespace: str
) -> None:
    writer, reader = Store(namespace), Store(namespace, b"b/1")
    old = await writer.written(link, b"old 1", b"old 2")

    fetched: list[float] = []

    async def replace() -> None:
        await writer.written(link, b"new")
        await link.call("DEL", *piece_keys(namespace, old))

    class Interrupted(RedisLink):
        async def call(self, *command: Any) -> Any:
            if command[0] == "HGET" and fetched == [0.5]:
                fetched.append(-1)
                await replace()
            return await RedisLink.call(link, *command)

    snapshot = await reader.read(Interrupted("unix:///unused", 1.0), fetched.append)
    assert snapshot is not None
    assert snapshot.pieces == [b"new"]
    assert not reader.refusals.reasons


async def test_the_log_is_kept_for_the_margin_behind_the_snapshot(link: RedisLink, namespace: str) -> None:
    """Entries every second from -300 s; the margin is 10 s, Redis trims by nodes of 100."""
    log = Keys(namespace).log
    for second in range(-300, 1):
        await link.call("XADD", log, f"{COVERED[0] + second * 1000}-1", "v", 1)
    await Store(namespace).written(link, b"")
    first = (await link.call("XRANGE", log, "-", "+", "COUNT", 1))[0][0]
    assert COVERED[0] - 110_000 <= int(first.split(b"-")[0]) <= COVERED[0] - 10_000


async def test_without_memory_a_snapshot_is_written_all_the_same(tmp_path: Any, namespace: str) -> None:
    async with EmbeddedValkey(tmp_path) as server:
        link = RedisLink(server.url, 5.0)
        await link.call("CONFIG", "SET", "maxmemory", 1)
        store = Store(namespace)
        assert await store.written(link, b"one", b"two")
        assert await store.pieces(link) == [b"one", b"two"]
        await link.aclose()


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
async def test_a_snapshot_of_another_version_is_refused_but_not_condemned(
    link: RedisLink, namespace: str, version: int
) -> None:
    """Those who wrote it can read it."""
    theirs, ours = Store(namespace, version=version), Store(namespace, b"b/1")
    head = await theirs.written(link, b"?")
    assert await ours.pieces(link) is None
    assert ours.refusals.reasons == ["version"]
    assert await theirs.head(link) == head
    seen = await ours.head(link)
    assert seen is not None
    assert seen.version == version


async def test_a_head_of_version_1_is_replaced_with_all_that_belonged_to_it(
    link: RedisLink, namespace: str
) -> None:
    """It had its data in a field of its own."""
    key = Keys(namespace).snapshot
    await link.call("HSET", key, "v", 1, "id", "5-1", "at", 5, "r", "x", "z", 0, "data", b"much")
    store = Store(namespace)
    assert await store.pieces(link) is None
    assert store.refusals.reasons == ["version"]
    await store.written(link, b"new")
    assert await store.pieces(link) == [b"new"]
    assert not await link.call("HEXISTS", key, "data")


DAMAGES = {
    "damaged": [
        ("HSET", "{pieces}", 0, b"onf"),
        ("HSET", "{pieces}", 1, b"tw"),
        ("HSET", "{snap}", "sum", "0123"),
        ("HSET", "{snap}", "size", 7),
    ],
    "incomplete": [("HDEL", "{pieces}", 1), ("DEL", "{pieces}"), ("HSET", "{snap}", "n", 3)],
}


@pytest.mark.parametrize(
    ("reason", "damage"), [(reason, damage) for reason, all_ in DAMAGES.items() for damage in all_]
)
async def test_what_is_not_what_was_written_is_refused_and_marked_until_it_is_replaced(
    link: RedisLink, namespace: str, reason: str, damage: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    writer, reader = Store(namespace), Store(namespace, b"b/1")
    head = await writer.written(link, b"one", b"two")
    keys = {"{pieces}": piece_keys(namespace, head)[0], "{snap}": Keys(namespace).snapshot}
    await link.call(*(keys.get(part, part) for part in damage))

    assert await reader.pieces(link) is None
    assert reader.refusals.reasons == [reason]
    assert [record.reason for record in caplog.records] == [reason]  # type: ignore[attr-defined]
    seen = await writer.head(link)
    assert seen is not None
    assert not seen.sound
    again = await writer.written(link, b"again")
    assert await writer.head(link) == again
    assert await reader.pieces(link) == [b"again"]


@pytest.mark.parametrize(
    "nonsense",
    [
        ("HSET", "{snap}", "id", "x"),
        ("HSET", "{snap}", "v", "x"),
        ("HSET", "{snap}", "n", "x"),
        ("HDEL", "{snap}", "sum"),
        ("SET", "{snap}", "a string"),
    ],
)
async def test_a_head_that_makes_no_sense_is_refused_and_can_be_replaced(
    link: RedisLink, namespace: str, nonsense: tuple[str, ...]
) -> None:
    store = Store(namespace)
    await store.written(link, b"one")
    await link.call(*(Keys(namespace).snapshot if part == "{snap}" else part for part in nonsense))

    assert await store.pieces(link) is None
    assert store.refusals.reasons == ["damaged"]
    seen = await store.head(link)
    assert seen is not None
    assert not seen.sound
    assert await store.written(link, b"two")
    assert await store.pieces(link) == [b"two"]


async def test_a_refusal_that_comes_late_does_not_mark_the_successor(link: RedisLink, namespace: str) -> None:
    store = Store(namespace)
    old = await store.written(link, b"old")
    new = await store.written(link, b"new")
    await store.refuse(link, old, "unreadable")
    assert await store.head(link) == new
    await store.refuse(link, new, "unreadable")
    seen = await store.head(link)
    assert seen is not None
    assert not seen.sound
