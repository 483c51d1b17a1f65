"""Sentinels and cluster nodes are asked, some are dead or tell old news, and the right server is found."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from redis.crc import key_slot

from loadtest.chaos import ClusterGroup, SentinelGroup, ValkeyServer
from router.shared.address import Endpoint, parse_address
from router.shared.connection import Connection
from router.shared.discovery import connect, replaced
from router.shared.failures import RedisLost
from router.shared.keys import Keys


@contextlib.asynccontextmanager
async def connected(url: str, home: str = "") -> AsyncIterator[Connection]:
    connection = await connect(parse_address(url), home, 2.0)
    try:
        yield connection
    finally:
        await connection.aclose()


async def process_of(connection: Connection) -> int:
    (text,) = await connection.exchange([("INFO", "server")])
    return int(text.partition(b"process_id:")[2].split()[0])


def test_all_keys_of_a_namespace_are_in_one_slot() -> None:
    keys = Keys("some.where")
    ours = (keys.log, keys.snapshot, keys.lease, keys.replica("a"))
    assert len({key_slot(key.encode()) for key in ours}) == 1


async def test_sentinels_lead_to_the_primary_and_after_its_death_to_the_next() -> None:
    async with SentinelGroup() as group:
        first = await group.primary()
        await group.sentinels[0].kill()  # one door of three is closed
        async with connected(group.url) as connection:
            assert await process_of(connection) == first.pid
        await first.kill()
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(RedisLost):
                    async with connected(group.url) as connection:
                        assert await process_of(connection) != first.pid
                        assert (await connection.exchange([("SET", "a", 1)])) == [b"OK"]
                        break
                await asyncio.sleep(0.1)


async def test_a_sentinel_that_tells_old_news_costs_one_attempt() -> None:
    """The first sentinel names a server that has become a replica; the second knows better."""
    async with (
        ValkeyServer() as primary,
        ValkeyServer({"replicaof": f"127.0.0.1 {primary.port}"}) as replica,
        ValkeyServer({"sentinel monitor main": f"127.0.0.1 {replica.port} 9"}, sentinel=True) as stale,
        ValkeyServer({"sentinel monitor main": f"127.0.0.1 {primary.port} 9"}, sentinel=True) as fresh,
    ):
        # So that the stale answer is one of a server that says it is no primary.
        await stale.command("SENTINEL", "SET", "main", "down-after-milliseconds", 3_600_000)
        with pytest.raises(RedisLost, match="no primary"):
            await connect(parse_address(f"redis+sentinel://127.0.0.1:{stale.port}/main"), "", 2.0)
        url = f"redis+sentinel://127.0.0.1:{stale.port},127.0.0.1:{fresh.port}/main"
        async with connected(url) as connection:
            assert await process_of(connection) == primary.pid


async def test_sentinels_and_data_servers_have_passwords_of_their_own() -> None:
    async with (
        ValkeyServer({"requirepass": "data"}) as primary,
        ValkeyServer(
            {
                "sentinel monitor main": f"127.0.0.1 {primary.port} 1",
                "sentinel auth-pass main": "data",
            },
            sentinel=True,
        ) as sentinel,
    ):
        await sentinel.command("ACL", "SETUSER", "default", "resetpass", ">watch")
        where = f"127.0.0.1:{sentinel.port}/main"
        async with connected(f"redis+sentinel://:data@{where}?sentinel_password=watch") as connection:
            assert await process_of(connection) == primary.pid
        for url in (f"redis+sentinel://:data@{where}", f"redis+sentinel://{where}?sentinel_password=watch"):
            with pytest.raises(RedisLost, match="NOAUTH"):
                await connect(parse_address(url), "", 2.0)


async def test_a_service_that_the_sentinels_do_not_know_is_lost() -> None:
    async with ValkeyServer(sentinel=True) as sentinel:
        with pytest.raises(RedisLost, match="do not know the service"):
            await connect(parse_address(f"redis+sentinel://127.0.0.1:{sentinel.port}/nobody"), "", 2.0)


async def test_a_cluster_leads_to_the_owner_of_our_slot_wherever_it_moves() -> None:
    async with ClusterGroup() as cluster:
        keys = Keys("cluster")
        owner = await cluster.owner(keys.log)
        url = "redis+cluster://" + ",".join([*cluster.addresses, "127.0.0.1:1"])
        for door in (url, *(f"redis+cluster://{address}" for address in cluster.addresses)):
            async with connected(door, keys.log) as connection:
                assert await process_of(connection) == owner.pid
                assert await connection.exchange([("SET", keys.log, "a")]) == [b"OK"]
        other = next(server for server in cluster.servers if server is not owner)
        await cluster.move(keys.log, other)
        async with connected(url, keys.log) as connection:
            assert await process_of(connection) == other.pid
            assert await connection.exchange([("GET", keys.log)]) == [b"a"]


async def test_a_search_that_is_cancelled_leaves_no_connection_behind() -> None:
    """Wherever it is by then: a connection that is forgotten would stay open, as something reads from it."""
    async with (
        ValkeyServer() as primary,
        ValkeyServer({"sentinel monitor main": f"127.0.0.1 {primary.port} 9"}, sentinel=True) as sentinel,
    ):
        address = parse_address(f"redis+sentinel://127.0.0.1:{sentinel.port}/main")
        for steps in range(150):
            search = asyncio.create_task(connect(address, "", 2.0, "searching"))
            for _ in range(2 * steps):
                await asyncio.sleep(0)
            search.cancel()
            (found,) = await asyncio.gather(search, return_exceptions=True)
            if isinstance(found, Connection):
                await found.aclose()
        async with asyncio.timeout(60):
            while b"name=searching" in await primary.command("CLIENT", "LIST"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_nobody_who_answers_is_lost_with_the_reason() -> None:
    with pytest.raises(RedisLost, match="no connection to 127"):
        await connect(parse_address("redis+cluster://127.0.0.1:1,127.0.0.1:2"), "", 2.0)
    async with ValkeyServer() as server:
        with pytest.raises(RedisLost, match="cluster support disabled"):
            await connect(parse_address(f"redis+cluster://127.0.0.1:{server.port}"), "", 2.0)


async def pointed(sentinel: ValkeyServer, primary: ValkeyServer) -> None:
    """Let a sentinel name this server from now on, as after a failover that the old primary slept through."""
    await sentinel.command("SENTINEL", "REMOVE", "main")
    await sentinel.command("SENTINEL", "MONITOR", "main", "127.0.0.1", str(primary.port), "9")


async def test_a_primary_is_replaced_when_most_sentinels_name_another_one_that_agrees() -> None:
    async with contextlib.AsyncExitStack() as stack:
        old, new = [await stack.enter_async_context(ValkeyServer()) for _ in range(2)]
        watching = {"sentinel monitor main": f"127.0.0.1 {old.port} 9"}
        sentinels = [await stack.enter_async_context(ValkeyServer(watching, sentinel=True)) for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        address = parse_address(f"redis+sentinel://{hosts}/main")

        async def is_replaced() -> bool:
            return await replaced(address, Endpoint("127.0.0.1", old.port or 0), 2.0)

        assert not await is_replaced()
        await pointed(sentinels[0], new)
        assert not await is_replaced()  # one of three: it may be the one that was cut off
        await pointed(sentinels[1], new)
        assert await is_replaced()
        await sentinels[0].kill()
        assert not await is_replaced()  # one of two
        await new.read_only()
        await sentinels[2].kill()
        assert not await is_replaced()  # it does not agree


async def test_a_server_without_sentinels_is_never_replaced() -> None:
    assert not await replaced(parse_address("redis://127.0.0.1:1"), Endpoint("127.0.0.1", 1), 2.0)
