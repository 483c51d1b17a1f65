"""What a worker sees of a client's request: its bytes, and few of its headers (`wire.md` 4).

Cookies and unknown headers never travel, nor does a client's id of its request: workers know it by ours. A
client's own key does only if it is none of ours and the fleet has none; the worker's pool adds the fleet's
key in its place (`router.fleet.worker_key`). Few fields of the body are changed
(`router.gateway.client_fields`).
"""

from router.gateway.hops import HOPS_HEADER
from router.proxy import ClientRequest, lines_of

CONTEXT_HEADERS = frozenset((b"traceparent", b"tracestate"))
"""Of which trace a request is part (W3C Trace Context)."""

FORWARDED_HEADERS = CONTEXT_HEADERS | {b"authorization", b"content-type", b"accept", b"x-correlation-id"}
"""What of a client's headers a worker sees, beside our id of the request and the hops."""

_OURS = b"%b%bx-request-id: %b\r\n" + HOPS_HEADER + b": %d\r\n"


class Forwarding:
    """What one gateway forwards.

    Args:
        passes_keys: Whether clients' keys are for the workers: neither this gateway nor the fleet has one.
    """

    def __init__(self, *, passes_keys: bool) -> None:
        self._headers = FORWARDED_HEADERS if passes_keys else FORWARDED_HEADERS - {b"authorization"}
        self._untraced = self._headers - CONTEXT_HEADERS

    def lines(self, request: ClientRequest, request_id: bytes, context: bytes = b"", hops: int = 0) -> bytes:
        """Header lines for the worker.

        Args:
            request: The client's.
            request_id: Our id of it.
            context: Lines of the trace that this is part of; empty: the client's, if it has any.
            hops: Gateways that it has passed before this one.
        """
        return _OURS % (
            lines_of(request.headers, self._untraced if context else self._headers, request.hop_names),
            context,
            request_id,
            hops + 1,
        )
