"""Two words for how Redis fails, and which of redis-py's errors means which.

    RedisLost      no (useful) connection: it ends, and a new one looks for the server again
    RedisRefused   the server answered that it will not do this (out of memory, not permitted)

An error that only another server, or the same one later, would not give counts as lost: a demoted
primary (``READONLY``), a slot that has moved (``MOVED``), a server that is loading its data (``LOADING``).
"""

from redis.exceptions import ResponseError

from router.errors import StateError

# First words of error answers; for others (NOAUTH, LOADING), redis-py ends the connection itself.
_LOST = frozenset(("READONLY", "MASTERDOWN", "UNBLOCKED", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"))


class RedisLost(StateError):
    """The connection is gone, or leads to a server that cannot serve us."""


class RedisRefused(StateError):
    """The server is there and refused one command."""


def failure_of(error: ResponseError) -> StateError:
    """Name an error answer by its remedy."""
    text = text_of(error)
    return RedisLost(text) if text.partition(" ")[0] in _LOST else RedisRefused(text)


def text_of(error: BaseException) -> str:
    """Return a server's words, with the first one, which redis-py keeps apart, and without our arguments."""
    said = error.__cause__ or error
    code = getattr(said, "status_code", None)
    text = f"{code} {said}" if code else str(said) or type(said).__name__
    return text.partition(", with args")[0]
