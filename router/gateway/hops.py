"""Requests that go in circles: how many gateways one has passed, and when that is too many.

    client ──> gateway ──1──> gateway ──2──> gateway ──3──> 508

A gateway may stand before another one. But one whose worker is itself, or two that name each other, would
send a request round until the files are used up. So each request to a worker says in ``x-cacheway-hops`` how
many gateways it has passed, and one that has passed more than `HOPS_MAX` is refused before it is placed. A
client's header counts like a gateway's, so whoever sends one is refused earlier, and gains nothing.
"""

from collections.abc import Sequence

from radix import parsed_whole
from router.errors import ClientError
from router.proxy import Header

HOPS_HEADER = b"x-cacheway-hops"

HOPS_MAX = 2
"""Gateways that a request may have passed: one for the site, one for the fleet."""


def hops_of(headers: Sequence[Header]) -> int:
    """Return how many gateways a request has passed.

    Raises:
        ClientError: If that is no number, or more than `HOPS_MAX` (508).
    """
    hops = 0
    for name, value in headers:
        if name == HOPS_HEADER:
            said = parsed_whole(value.decode("latin-1"))
            if said is None:
                raise ClientError(
                    f"{HOPS_HEADER.decode()} must be a whole number.",
                    code="invalid_value",
                    param=HOPS_HEADER.decode(),
                )
            hops = max(hops, said)
    if hops > HOPS_MAX:
        raise ClientError(
            f"The request has passed {HOPS_MAX + 1} gateways or more: a worker of this gateway is a gateway "
            "that leads back to it.",
            code="loop_detected",
            status=508,
        )
    return hops
