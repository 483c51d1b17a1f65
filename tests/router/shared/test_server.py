"""A link connects when it is needed, names failures, and looks again after it was lost."""

import asyncio
from pathlib import Path

import pytest

from loadtest.chaos import ClusterGroup, ValkeyServer
from router.errors import StateError
from router.shared import EmbeddedValkey, server
from router.shared.server import RedisLink, RedisLost, RedisRefused, leave_replaced


@pytest.mark.parametrize("url", ["http://host", "host:6379", "redis+sentinel://host:26379"])
def test_a_url_that_makes_no_sense_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(StateError, match="redis://") as caught:
        RedisLink(url, 1.0)
    assert url not in str(caught.value).replace("redis+sentinel://host:port/service", "")


async def test_no_server_is_lost_and_an_error_is_refused(redis_url: str, namespace: str) -> None:
    nowhere = RedisLink("unix:///nonexistent/valkey.sock", 0.5)
    with pytest.raises(RedisLost):
        await nowhere.call("PING")
    await nowhere.aclose()
    link = RedisLink(redis_url, 5.0)
    await link.call("SET", namespace, "text")
    with pytest.raises(RedisRefused, match="WRONGTYPE"):
        await link.call("XADD", namespace, "*", "a", "b")
    with pytest.raises(RedisRefused, match="WRONGTYPE"):
        await link.calls(("PING",), ("XADD", namespace, "*", "a", "b"))
    assert await link.calls(("PING",), ("GET", namespace)) == [b"PONG", b"text"]
    assert await link.calls() == []
    await link.aclose()


async def test_a_wrong_password_is_lost_and_not_told(tmp_path: Path) -> None:
    async with EmbeddedValkey(tmp_path) as server:
        link = RedisLink(server.url.replace("unix://", "unix://:hunter2@"), 5.0)
        with pytest.raises(RedisLost) as caught:
            await link.call("PING")
        assert "hunter2" not in str(caught.value)
        await link.aclose()


async def test_a_cancelled_command_is_cancelled(redis_url: str) -> None:
    """Also while it still connects; and the link works afterwards."""
    link = RedisLink(redis_url, 5.0)
    for steps in range(40):
        await link.aclose()

        async def forever() -> None:
            while True:
                await link.calls(("PING",), ("PING",))

        task = asyncio.create_task(forever())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=60)
        assert done
        assert task.cancelled()
        assert await link.call("ECHO", str(steps)) == str(steps).encode()
    await link.aclose()


async def test_calls_that_come_together_share_one_connection(redis_url: str, namespace: str) -> None:
    link = RedisLink(redis_url, 5.0, name=namespace)
    await asyncio.gather(*(link.call("PING") for _ in range(10)))
    clients = await link.call("CLIENT", "LIST")
    assert clients.count(f"name={namespace} ".encode()) == 1
    await link.aclose()


async def test_after_a_loss_the_next_call_connects_again() -> None:
    async with ValkeyServer() as server:
        link = RedisLink(server.url, 5.0)
        assert await link.call("PING") == b"PONG"
        await server.kill()
        with pytest.raises(RedisLost):
            await link.call("PING")
        await server.start()
        assert await link.call("PING") == b"PONG"
        await link.aclose()


async def test_a_link_that_is_given_up_connects_again(redis_url: str) -> None:
    link = RedisLink(redis_url, 5.0)
    link.lose("nothing to lose")
    first = await link.call("CLIENT", "ID")
    link.lose("the wrong server")
    assert not link.connected
    assert await link.call("CLIENT", "ID") != first
    await link.aclose()


async def test_a_server_that_became_read_only_is_left() -> None:
    async with ValkeyServer() as server:
        link = RedisLink(server.url, 5.0)
        before = await link.call("CLIENT", "ID")
        await server.read_only()
        with pytest.raises(RedisLost, match="READONLY"):
            await link.call("SET", "a", "b")
        assert await link.call("CLIENT", "ID") != before
        await link.aclose()


async def test_a_slot_that_moves_is_followed_by_the_next_call() -> None:
    async with ClusterGroup(2) as cluster:
        key = "cw:{ns}:log"
        link = RedisLink(f"redis+cluster://{cluster.addresses[0]}", 5.0, home=key)
        await link.call("SET", key, "a")
        owner = await cluster.owner(key)
        await cluster.move(key, next(server for server in cluster.servers if server is not owner))
        with pytest.raises(RedisLost, match="MOVED"):
            await link.call("GET", key)
        assert await link.call("GET", key) == b"a"
        await link.aclose()


async def test_round_trips_are_told_without_the_time_to_connect(redis_url: str) -> None:
    told: list[tuple[float, float]] = []
    link = RedisLink(redis_url, 5.0, measured=lambda started_s, ended_s: told.append((started_s, ended_s)))
    assert link.silence_s == 0.0
    await link.calls(("PING",), ("PING",))
    waiting = asyncio.create_task(link.call("BLPOP", "nothing here", "0.05"))
    while not link.silence_s:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await waiting
    assert [ended_s >= started_s for started_s, ended_s in told] == [True, True]
    assert told[1][1] - told[1][0] >= 0.04
    await link.aclose()


async def test_a_server_that_cannot_be_replaced_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    await leave_replaced(RedisLink("redis://host", 1.0), RedisLink("unix:///valkey.sock", 1.0))
    monkeypatch.setattr(server, "SERVER_INTERVAL_S", 0.0)
    link, lost = RedisLink("redis+sentinel://host:26379/service", 1.0), asyncio.Event()

    async def replaced() -> bool:
        return True

    monkeypatch.setattr(link, "replaced", replaced)
    monkeypatch.setattr(link, "lose", lambda _: lost.set())
    looks = asyncio.create_task(leave_replaced(link))
    async with asyncio.timeout(60):
        await lost.wait()
    looks.cancel()
