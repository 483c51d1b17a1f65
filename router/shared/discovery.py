"""The server to talk to, when the URL does not name it: Sentinels and clusters.

All endpoints of the URL are asked at once, since some may be dead; the answers are tried in the order
in which they come, until a server says of itself that it is the right one:

    Sentinel   SENTINEL GET-MASTER-ADDR-BY-NAME service  ->  connect, ROLE says master
    cluster    CLUSTER SLOTS: the owner of our slot      ->  connect, a command on our key is not MOVED

So a Sentinel or node that was cut off and tells old news costs one attempt. All our keys share one
hash tag, so one slot, so one node: nothing else of a cluster matters. (redis-py's `Sentinel` asks one
after the other and believes the first; its `RedisCluster` reads all slots and commands: decision 0053.)

A primary that was replaced while it was paused or cut off goes on taking writes, for ten seconds and more,
until a Sentinel tells it; then they are lost. So a client of one asks now and then if it is `replaced`.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from redis.crc import key_slot
from redis.exceptions import ResponseError

from router.shared.address import Endpoint, RedisAddress
from router.shared.connection import Connection
from router.shared.failures import RedisLost, text_of


async def connect(address: RedisAddress, home: str, timeout_s: float, name: str = "cacheway") -> Connection:
    """Connect to the server that an address means now.

    Args:
        address: A server, Sentinels, or nodes of a cluster.
        home: A key; in a cluster the owner of its slot is meant.
        timeout_s: Longest wait for each connection and answer, seconds.
        name: Shown to operators (``CLIENT LIST``).

    Raises:
        RedisLost: There is none, or none that could be found.
    """
    if address.kind == "server":
        return await Connection.open(address.endpoints[0], address.data, timeout_s, name)
    tried: set[Endpoint] = set()
    failure = RedisLost("no server was found")
    async with contextlib.AsyncExitStack() as unless_returned:
        questions = [
            asyncio.ensure_future(
                _primary(endpoint, address, timeout_s)
                if address.kind == "sentinel"
                else _owner(endpoint, address, home, timeout_s)
            )
            for endpoint in address.endpoints
        ]
        try:
            for question in asyncio.as_completed(questions):
                try:
                    found = await question
                    if found not in tried:
                        tried.add(found)
                        connection = await _right(found, address, home, timeout_s, name)
                        unless_returned.push_async_callback(connection.aclose)
                        break
                except RedisLost as error:
                    failure = error
            else:
                raise failure
        finally:
            for question in questions:
                question.cancel()
            await asyncio.gather(*questions, return_exceptions=True)
        unless_returned.pop_all()
        return connection


async def replaced(address: RedisAddress, server: Endpoint, timeout_s: float) -> bool:
    """True if most Sentinels that answer name another server, which says that it is the primary.

    Never where an address has no Sentinels. An answer that cannot be had is no reason to leave a server.
    """
    if address.kind != "sentinel":
        return False
    questions = (_primary(sentinel, address, timeout_s) for sentinel in address.endpoints)
    answers = await asyncio.gather(*questions, return_exceptions=True)
    named = Counter(answer for answer in answers if isinstance(answer, Endpoint))
    for found, sentinels in named.most_common(1):
        if found == server or 2 * sentinels <= named.total():
            return False
        with contextlib.suppress(RedisLost):
            async with _asked(found, address.data, timeout_s) as connection:
                await _assert_primary(connection)
                return True
    return False


async def _right(
    endpoint: Endpoint, address: RedisAddress, home: str, timeout_s: float, name: str
) -> Connection:
    """Connect to a server that was named, if it says that it is the right one."""
    connection = await Connection.open(endpoint, address.data, timeout_s, name)
    try:
        if address.kind == "sentinel":
            await _assert_primary(connection)
        else:
            await _one(connection, "EXISTS", home)
    except BaseException:
        await connection.aclose()
        raise
    return connection


async def _primary(sentinel: Endpoint, address: RedisAddress, timeout_s: float) -> Endpoint:
    async with _asked(sentinel, address.sentinel, timeout_s) as connection:
        answer = await _one(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)
    if answer is None:
        raise RedisLost("the Sentinels do not know the service of the URL")
    host, port = answer
    return Endpoint(host.decode(), int(port))


async def _owner(node: Endpoint, address: RedisAddress, home: str, timeout_s: float) -> Endpoint:
    async with _asked(node, address.data, timeout_s) as connection:
        ranges = await _one(connection, "CLUSTER", "SLOTS")
    for first, last, owner, *_ in ranges:
        if first <= key_slot(home.encode()) <= last:
            # A node that does not know its own address leaves it out: the one we asked under holds.
            host = owner[0].decode() if owner[0] not in (None, b"", b"?") else node.host
            return Endpoint(host, owner[1])
    raise RedisLost("no node of the cluster owns the slot of our keys")


async def _assert_primary(connection: Connection) -> None:
    """Ask a server whether it is a primary; where asking is not permitted, writing will tell."""
    (role,) = await connection.exchange([("ROLE",)])
    if not isinstance(role, ResponseError) and role[0] != b"master":
        raise RedisLost("the Sentinels named a server that is no primary")


@contextlib.asynccontextmanager
async def _asked(endpoint: Endpoint, options: Mapping[str, Any], timeout_s: float) -> Any:
    """A connection for one question."""
    connection = await Connection.open(endpoint, options, timeout_s)
    try:
        yield connection
    finally:
        await connection.aclose()


async def _one(connection: Connection, *command: str) -> Any:
    """The answer to one command; an error means that this is not the server to ask."""
    (reply,) = await connection.exchange([command])
    if isinstance(reply, ResponseError):
        raise RedisLost(text_of(reply)) from reply
    return reply
