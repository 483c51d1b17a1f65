"""A snapshot is written by the holder of the lease only, whole or not at all."""

from collections.abc import AsyncIterator

import pytest

from router.shared.keys import Keys
from router.shared.ports import NoListener
from router.shared.server import RedisLink
from router.shared.snapshot import DEFLATE_BYTES_MIN, VERSION, Snapshot, SnapshotHead, SnapshotStore

HEAD = SnapshotHead(VERSION, (1_700_000_000_000, 3), 1_700_000_000_500_000)


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_url, 5.0)
    yield link
    await link.aclose()


def store(namespace: str, writer: bytes = b"a/1") -> SnapshotStore:
    return SnapshotStore(writer, Keys(namespace), NoListener(), trim_margin_s=10.0)


@pytest.mark.parametrize("payload", [b"", b"small", b"deflates well" * DEFLATE_BYTES_MIN])
async def test_what_is_written_is_read(link: RedisLink, namespace: str, payload: bytes) -> None:
    writer = store(namespace)
    assert await writer.read(link) is None
    assert await writer.head(link) is None
    assert await writer.acquire(link)
    assert await writer.write(link, Snapshot(HEAD, payload))
    assert await store(namespace, b"b/1").read(link) == Snapshot(HEAD, payload)
    assert await writer.head(link) == HEAD


async def test_large_snapshots_are_deflated(link: RedisLink, namespace: str) -> None:
    writer = store(namespace)
    await writer.acquire(link)
    await writer.write(link, Snapshot(HEAD, bytes(DEFLATE_BYTES_MIN)))
    assert await link.call("HSTRLEN", Keys(namespace).snapshot, "data") < DEFLATE_BYTES_MIN / 10


async def test_the_lease_is_exclusive_until_it_is_given_back(link: RedisLink, namespace: str) -> None:
    a, b = store(namespace, b"a/1"), store(namespace, b"b/1")
    assert await a.acquire(link)
    assert not await b.acquire(link)
    assert await a.acquire(link)
    assert await a.write(link, Snapshot(HEAD, b"by a"))
    assert await b.acquire(link)


async def test_who_lost_the_lease_writes_nothing(link: RedisLink, namespace: str) -> None:
    a, b = store(namespace, b"a/1"), store(namespace, b"b/1")
    assert await a.acquire(link)
    await link.call("DEL", Keys(namespace).lease)  # as if it had expired
    assert await b.acquire(link)
    assert await b.write(link, Snapshot(HEAD, b"by b"))
    assert not await a.write(link, Snapshot(HEAD, b"by a, too late"))
    snapshot = await b.read(link)
    assert snapshot is not None
    assert snapshot.payload == b"by b"


async def test_the_log_is_kept_for_the_margin_behind_the_snapshot(link: RedisLink, namespace: str) -> None:
    """Entries every second from -300 s; the margin is 10 s, Redis trims by nodes of 100."""
    log = Keys(namespace).log
    for second in range(-300, 1):
        await link.call("XADD", log, f"{HEAD.covered[0] + second * 1000}-1", "v", 1)
    writer = store(namespace)
    await writer.acquire(link)
    await writer.write(link, Snapshot(HEAD, b""))
    first = (await link.call("XRANGE", log, "-", "+", "COUNT", 1))[0][0]
    assert HEAD.covered[0] - 110_000 <= int(first.split(b"-")[0]) <= HEAD.covered[0] - 10_000


async def test_a_snapshot_of_a_newer_format_is_seen_but_not_read(link: RedisLink, namespace: str) -> None:
    writer = store(namespace)
    await writer.acquire(link)
    newer = SnapshotHead(VERSION + 1, HEAD.covered, HEAD.at_us)
    await writer.write(link, Snapshot(newer, b"?"))
    assert await writer.head(link) == newer
    assert await writer.read(link) is None


async def test_damaged_data_reads_as_no_snapshot(link: RedisLink, namespace: str) -> None:
    writer = store(namespace)
    await writer.acquire(link)
    await writer.write(link, Snapshot(HEAD, bytes(DEFLATE_BYTES_MIN)))
    await link.call("HSET", Keys(namespace).snapshot, "data", b"not deflated")
    assert await writer.read(link) is None
