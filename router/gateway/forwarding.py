"""What a worker sees of a client's request: its bytes, and few of its headers (`wire.md` 4).

Cookies and unknown headers never travel. A client's own key does only if it is none of ours and the fleet has
none; the worker's pool adds the fleet's key in its place (`router.fleet.worker_key`). A tenant with a cache
of its own has its salt put into the body.
"""

from collections.abc import Sequence

from router.gateway.parsing import ParsedRequest
from router.gateway.salting import salted, takes_salt
from router.proxy import ClientRequest, lines_of

CONTEXT_HEADERS = frozenset((b"traceparent", b"tracestate"))
"""Of which trace a request is part (W3C Trace Context)."""

FORWARDED_HEADERS = CONTEXT_HEADERS | {b"authorization", b"content-type", b"accept", b"x-correlation-id"}
"""What of a client's headers a worker sees, beside the request's id in our words."""


class Forwarding:
    """What one gateway forwards.

    Args:
        passes_keys: Whether clients' keys are for the workers: neither this gateway nor the fleet has one.
    """

    def __init__(self, *, passes_keys: bool) -> None:
        self._headers = FORWARDED_HEADERS if passes_keys else FORWARDED_HEADERS - {b"authorization"}
        self._untraced = self._headers - CONTEXT_HEADERS

    def lines(self, request: ClientRequest, request_id: bytes, context: bytes = b"") -> bytes:
        """Header lines for the worker.

        Args:
            request: The client's.
            request_id: Its id.
            context: Lines of the trace that this is part of; empty: the client's, if it has any.
        """
        return b"%b%bx-request-id: %b\r\n" % (
            lines_of(request.headers, self._untraced if context else self._headers, request.hop_names),
            context,
            request_id,
        )


def with_salt(body: bytes, parsed: ParsedRequest, salt: str) -> Sequence[bytes | memoryview]:
    """The client's body, with the salt that keeps its tenant's cache apart if it touches a cache at all."""
    if not takes_salt(parsed.endpoint):
        return (body,)
    return salted(parsed.endpoint, body, salt, parsed.salt_span)
