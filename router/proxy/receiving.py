"""States of one client connection's input.

    IDLE ──> HEAD ──┬──> BODY ─────> IDLE      an exchange serves it
     ^               ├──> APP_BODY ─> IDLE      the application serves it
     └── UPGRADE <──┘                          it is parsed again without the offer
                    └──> BODY ─────> TUNNEL    a WebSocket: bytes, both ways, until the connection ends

    each of them ──> REFUSED                   nothing more is served: input is discarded

An unknown step of a state is a mistake of ours, and raises `KeyError`.
"""

from enum import IntEnum


class Receiving(IntEnum):
    """State of the input."""

    IDLE = 0
    """No request, or the last one is complete."""
    HEAD = 1
    UPGRADE = 2
    """A request that offers an upgrade: its head is to be parsed again."""
    BODY = 3
    """The body of a proxied request, if it has one."""
    APP_BODY = 4
    REFUSED = 5
    """A refusal was or will be the last answer, or the connection made room for another one."""
    TUNNEL = 6


class Received(IntEnum):
    """Step from a state to the next."""

    BEGIN = 0
    PROXY = 1
    SERVE = 2
    UPGRADE = 3
    AGAIN = 4
    COMPLETE = 5
    REFUSE = 6
    TUNNEL = 7


NEXT_RECEIVING: dict[Receiving, dict[Received, Receiving]] = {
    Receiving.IDLE: {Received.BEGIN: Receiving.HEAD, Received.REFUSE: Receiving.REFUSED},
    Receiving.HEAD: {
        Received.PROXY: Receiving.BODY,
        Received.SERVE: Receiving.APP_BODY,
        Received.UPGRADE: Receiving.UPGRADE,
        Received.REFUSE: Receiving.REFUSED,
    },
    Receiving.UPGRADE: {Received.AGAIN: Receiving.IDLE, Received.REFUSE: Receiving.REFUSED},
    Receiving.BODY: {
        Received.COMPLETE: Receiving.IDLE,
        Received.TUNNEL: Receiving.TUNNEL,
        Received.REFUSE: Receiving.REFUSED,
    },
    Receiving.APP_BODY: {Received.COMPLETE: Receiving.IDLE, Received.REFUSE: Receiving.REFUSED},
    Receiving.TUNNEL: {Received.REFUSE: Receiving.REFUSED},
    Receiving.REFUSED: {Received.REFUSE: Receiving.REFUSED},
}
"""The next state, by state and step. To refuse again changes nothing."""


def _after(step: Received) -> dict[Receiving, Receiving]:
    return {state: steps[step] for state, steps in NEXT_RECEIVING.items() if step in steps}


# One table per step, since every request takes three: members of the enumerations cost twice as much.
AFTER_BEGIN = _after(Received.BEGIN)
AFTER_PROXY = _after(Received.PROXY)
AFTER_SERVE = _after(Received.SERVE)
AFTER_UPGRADE = _after(Received.UPGRADE)
AFTER_AGAIN = _after(Received.AGAIN)
AFTER_COMPLETE = _after(Received.COMPLETE)
AFTER_REFUSE = _after(Received.REFUSE)
AFTER_TUNNEL = _after(Received.TUNNEL)
