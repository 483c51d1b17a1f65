"""The parts of a client's request that a worker sees: its body, and some of its headers.

Cookies and the client's request id never travel; workers know a request by our id. Other headers pass by
``upstream.forward_headers`` (`router.forwarded_headers`). A
client's key travels only if neither this gateway nor the fleet has one; the worker's pool adds the fleet's
key (`router.fleet.worker_key`). Changes of the body: `router.gateway.client_fields`.

**Loops.** A gateway may stand before another one, but a gateway that is its own worker would send a request
round until no file is left. So each request to a worker carries in ``x-cacheway-hops`` how many gateways it
has passed, and more than `HOPS_MAX` are refused before placement:

    client ──> gateway ──1──> gateway ──2──> gateway ──3──> 508
"""

from collections.abc import Sequence

from radix import parsed_whole
from router.errors import ClientError
from router.forwarded_headers import PassedHeaders
from router.proxy import ClientRequest, Header, lines_of

HOPS_HEADER = b"x-cacheway-hops"

HOPS_MAX = 2
"""Gateways that a request may have passed: one for the site, one for the fleet."""

CONTEXT_HEADERS = frozenset((b"traceparent", b"tracestate"))
"""W3C Trace Context."""

_OURS = b"%b%bx-request-id: %b\r\n" + HOPS_HEADER + b": %d\r\n"


class Forwarding:
    """Header lines for the workers of one gateway.

    Clients' keys are for the workers (``passes_keys``) if neither this gateway nor the fleet has one.
    ``headers`` says which headers pass.
    """

    def __init__(self, patterns: tuple[str, ...], *, passes_keys: bool) -> None:
        self.passes_keys = passes_keys
        self.use(patterns)

    def use(self, patterns: tuple[str, ...]) -> None:
        """Apply the patterns of ``upstream.forward_headers`` to later requests."""
        self.headers = PassedHeaders(patterns, passes_keys=self.passes_keys)

    def lines(self, request: ClientRequest, request_id: bytes, context: bytes = b"", hops: int = 0) -> bytes:
        """Return header lines for the worker of a client's request, with our id of it.

        ``context`` are lines of our own trace, in place of the client's; ``hops`` the gateways passed before
        this one.
        """
        head = request.head
        derived = None if context else head.derived
        lines = None if derived is None else derived.get(self.headers)
        if not isinstance(lines, bytes):
            hop_names = (*head.hop_names, *CONTEXT_HEADERS) if context else head.hop_names
            try:
                lines = lines_of(head.headers, self.headers.judged, hop_names)
            except KeyError:  # a name that was not seen before
                lines = lines_of(head.headers, self.headers, hop_names)
            if derived is not None:
                derived.put(self.headers, lines)
        return _OURS % (lines, context, request_id, hops + 1)


def hops_of(headers: Sequence[Header]) -> int:
    """Return the number of gateways that a request has passed, the greatest of several headers.

    Raises `ClientError` if a header is no number, or beyond `HOPS_MAX` (508).
    """
    hops = 0
    for name, value in headers:
        if name == HOPS_HEADER:
            passed = parsed_whole(value.decode("latin-1"))
            if passed is None:
                raise ClientError(
                    f"{HOPS_HEADER.decode()} must be a whole number.",
                    code="invalid_value",
                    param=HOPS_HEADER.decode(),
                )
            hops = max(hops, passed)
    if hops > HOPS_MAX:
        raise ClientError(
            f"The request has passed {HOPS_MAX + 1} gateways or more: a worker of this gateway is a gateway "
            "that leads back to it.",
            code="loop_detected",
            status=508,
        )
    return hops
