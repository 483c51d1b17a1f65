"""What is coming in on one client's connection, and the only ways from one thing to the next.

    IDLE ──> HEAD ──┬──> BODY ─────> IDLE      an exchange serves it
     ^               ├──> APP_BODY ─> IDLE      the application serves it
     └── UPGRADE <──┘                          it is parsed again as if none had been offered

    each of them ──> REFUSED                   nothing more is served: what still comes is discarded

A step that a state does not know is a mistake of ours, and raises `KeyError`.
"""

from enum import IntEnum


class Receiving(IntEnum):
    """What is coming in."""

    IDLE = 0
    """Nothing yet, or the last request is complete."""
    HEAD = 1
    """The head of a request."""
    UPGRADE = 2
    """A request that offers an upgrade: its head is to be parsed again."""
    BODY = 3
    """The body of a proxied request, if it has one."""
    APP_BODY = 4
    """The body of a request for the application."""
    REFUSED = 5
    """A refusal was or will be the last answer, or the connection is closed for another one."""


class Received(IntEnum):
    """What happens to it."""

    BEGIN = 0
    PROXY = 1
    SERVE = 2
    UPGRADE = 3
    AGAIN = 4
    COMPLETE = 5
    REFUSE = 6


NEXT_RECEIVING: dict[Receiving, dict[Received, Receiving]] = {
    Receiving.IDLE: {Received.BEGIN: Receiving.HEAD, Received.REFUSE: Receiving.REFUSED},
    Receiving.HEAD: {
        Received.PROXY: Receiving.BODY,
        Received.SERVE: Receiving.APP_BODY,
        Received.UPGRADE: Receiving.UPGRADE,
        Received.REFUSE: Receiving.REFUSED,
    },
    Receiving.UPGRADE: {Received.AGAIN: Receiving.IDLE, Received.REFUSE: Receiving.REFUSED},
    Receiving.BODY: {Received.COMPLETE: Receiving.IDLE, Received.REFUSE: Receiving.REFUSED},
    Receiving.APP_BODY: {Received.COMPLETE: Receiving.IDLE, Received.REFUSE: Receiving.REFUSED},
    Receiving.REFUSED: {Received.REFUSE: Receiving.REFUSED},
}
"""The state that follows, by state and step. To refuse again changes nothing."""
