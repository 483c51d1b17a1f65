"""Two words for how Redis fails, and which of redis-py's errors means which.

    RedisLost      no (useful) connection: it ends, and a new one looks for the server again
    RedisRefused   the server answered that it will not do this (out of memory, not permitted)

An error that only another server, or the same one later, would not give counts as lost: a demoted
primary (``READONLY``), a slot that has moved (``MOVED``), a server that is loading its data.
"""

from redis.exceptions import (
    AskError,
    ClusterDownError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from router.errors import StateError

# Of the error answers; `MovedError` is an `AskError`, `MasterDownError` a `ClusterDownError`.
_LOST = (ReadOnlyError, AskError, TryAgainError, ClusterDownError)


class RedisLost(StateError):
    """The connection is gone, or leads to a server that cannot serve us."""


class RedisRefused(StateError):
    """The server is there and refused one command."""


def failure_of(error: RedisError) -> StateError:
    """Name an error of redis-py by what to do about it."""
    text = text_of(error)
    refused = isinstance(error, ResponseError) and not isinstance(error, _LOST)
    return RedisRefused(text) if refused and not text.startswith("UNBLOCKED") else RedisLost(text)


def text_of(error: BaseException) -> str:
    """What the server said, with the first word, which redis-py keeps apart."""
    code = getattr(error, "status_code", None)
    return f"{code} {error}" if code else str(error) or type(error).__name__
