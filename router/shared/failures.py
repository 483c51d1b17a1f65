"""Two words for how Redis fails, and which of its error answers means which.

    RedisLost      no (useful) connection: it ends, and a new one looks for the server again
    RedisRefused   the server answered that it will not do this (out of memory, not permitted)

An error that only another server, or the same one later, would not give counts as lost: a demoted
primary (``READONLY``), a slot that has moved (``MOVED``), a server that is loading its data.
"""

from hiredis import ReplyError

from router.errors import StateError

# First words of error answers: Redis's own, its replication's and its cluster's.
_LOST = frozenset(
    (
        *("READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED", "NOAUTH"),
        *("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"),
    )
)


class RedisLost(StateError):
    """The connection is gone, or leads to a server that cannot serve us."""


class RedisRefused(StateError):
    """The server is there and refused one command."""


def failure_of(error: ReplyError) -> StateError:
    """Name an error answer by what to do about it."""
    text = str(error)
    return RedisLost(text) if text.partition(" ")[0] in _LOST else RedisRefused(text)
