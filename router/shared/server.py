"""The adapter to redis-py: where Redis is, and two words for how it fails.

    RedisLost      no (useful) connection: the session ends and begins again with a new one
    RedisRefused   the server answered that it will not do this (out of memory, not permitted)

redis-py never retries here: what may be repeated, and when, is decided in `router.shared.state`.
A demoted primary (``READONLY``) counts as lost, since only a new connection finds its successor.
Messages never contain the URL, which may hold a password.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MasterDownError, ReadOnlyError, RedisError, ResponseError

from router.errors import StateError

Argument = bytes | str | int
Command = tuple[Argument, ...]

SENTINEL_PORT = 26379


class RedisLost(StateError):
    """The connection is gone, or leads to a server that cannot serve us."""


class RedisRefused(StateError):
    """The server is there and refused one command."""


class RedisLink:
    """Connections to one Redis, opened when needed, whose commands share a timeout.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, or ``redis+sentinel://`` and
            ``rediss+sentinel://`` as ``[user:password@]host[:port],host.../service[/db]``.
        timeout_s: Longest wait to connect and for each answer.

    Raises:
        StateError: The URL is not one of these.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        options: dict[str, Any] = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        self._sentinel: Sentinel | None = None
        scheme, _, rest = url.partition("://")
        try:
            if scheme.endswith("+sentinel"):
                self._sentinel, service = _sentinel(scheme, rest, options)
                self._redis: Redis = self._sentinel.master_for(service)
            else:
                self._redis = Redis.from_url(url, **options)
        except ValueError as error:
            raise StateError(
                "the Redis URL is not redis://, rediss://, unix:// or redis+sentinel://host:port/service"
            ) from error

    async def call(self, *command: Argument) -> Any:
        """Run one command.

        Raises:
            RedisLost: No connection, no answer in time, or a server that cannot serve us.
            RedisRefused: The server answered with an error.
        """
        with _our_errors():
            return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]

    async def calls(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip; raises like `call`, for the first that failed."""
        with _our_errors():
            pipeline = self._redis.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute()

    async def aclose(self) -> None:
        """Close all connections."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()
            if self._sentinel is not None:
                await self._sentinel.aclose()


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    """Translate redis-py's errors, and deliver a cancellation that it has swallowed.

    A command that is cancelled while redis-py sets up its connection may go on as if nothing had
    happened, or fail as if Redis had; a loop would then outlive its session.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    try:
        yield
    except (RedisError, OSError) as error:
        if task.cancelling() > cancelled_before:
            raise asyncio.CancelledError from error
        raise _translated(error) from error
    if task.cancelling() > cancelled_before:
        raise asyncio.CancelledError


def _translated(error: Exception) -> StateError:
    refused = isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError | MasterDownError)
    kind = RedisRefused if refused and not isinstance(error, RedisConnectionError) else RedisLost
    return kind(str(error) or type(error).__name__)


def _sentinel(scheme: str, rest: str, options: dict[str, Any]) -> tuple[Sentinel, str]:
    """Build the Sentinel client of a URL; the credentials in it are those of the data server."""
    authority, _, path = rest.partition("/")
    credentials, at, hosts = authority.rpartition("@")
    service, _, database = path.partition("/")
    if not service or not hosts:
        raise ValueError("a Sentinel URL needs hosts and a service name")
    if at:
        user, _, password = credentials.partition(":")
        options |= {"username": unquote(user) or None, "password": unquote(password) or None}
    addresses = [urlsplit(f"//{host}") for host in hosts.split(",")]
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        [(address.hostname or "", address.port or SENTINEL_PORT) for address in addresses],
        sentinel_kwargs={
            name: options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")
        },
        ssl=scheme.startswith("rediss"),
        db=int(database or 0),
        **options,
    )
    return sentinel, service
