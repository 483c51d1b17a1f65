"""Errors that the gateway itself writes into answers.

the core      QueueFull  Displaced  Expired  Unserved  Unpublished  Shed
the client    429        429        408      its own   500          429 or 503
"""

import logging
from typing import assert_never

from policies import (
    SLO_UNREACHABLE,
    Displaced,
    Expired,
    QueueFull,
    QueueRefusal,
    Shed,
    Unpublished,
    Unserved,
)
from router.errors import (
    NoWorker,
    RequestDisplaced,
    RequestExpired,
    RequestRejected,
    RouterError,
    UpstreamError,
    WorkerUnreachable,
    error_body,
    speaks_anthropic,
)

logger = logging.getLogger(__name__)


def error_event(path: bytes, error: RouterError, request_id: bytes = b"") -> bytes:
    """Return the last event of an event stream that broke between two events.

    Anthropic's streams name their events; the others have data only.
    """
    name = b"event: error\n" if speaks_anthropic(path) else b""
    return name + b"data: " + error_body(error, path, request_id) + b"\n\n"


def crashed() -> RouterError:
    """Log the exception being handled, a mistake of ours, and return the client's error."""
    logger.exception("request failed inside the gateway", extra={"event": "request.crashed"})
    return RouterError("The gateway failed to serve this request; its log says why.")


def told(error: Exception) -> RouterError:
    """Return the client's error for the exception being handled, which may be a mistake of ours."""
    return error if isinstance(error, RouterError) else crashed()


def without_worker(error: RouterError) -> RouterError:
    """Return an error without details of workers, for clients that may not see them."""
    if not isinstance(error, UpstreamError) or error.code == "request_timeout":
        return error
    shown = UpstreamError("The worker that served this request failed.", code=error.code)
    shown.status = error.status
    return shown


def answered_error(status: int) -> UpstreamError:
    """Return the failure that a worker's error status stands for."""
    return WorkerUnreachable(f"The worker answered {status}.", code=f"upstream_status_{status}")


def error_of(refusal: QueueRefusal) -> RouterError:
    """Return the error for a request that the queue or all workers refuse."""
    match refusal:
        case Shed(reason=reason, retry_after_s=retry_after_s, detail=detail):
            if reason == SLO_UNREACHABLE:
                message = f"The request would miss its service level: {detail}."
                return RequestRejected(message, retry_after_s=retry_after_s, code=SLO_UNREACHABLE)
            return NoWorker("No worker can take a request now.", retry_after_s=retry_after_s)
        case Unserved(error=error):
            return told(error)
        case Displaced(retry_after_s=retry_after_s):
            return RequestDisplaced(retry_after_s=retry_after_s)
        case Expired(waited_s=waited_s, by_operator=by_operator):
            return RequestExpired(waited_s, by_operator=by_operator)
        case Unpublished():
            return crashed()
        case QueueFull(requests=requests, tokens=tokens, retry_after_s=retry_after_s):
            return RequestRejected(
                f"{requests} requests with {tokens} uncached tokens are waiting already.",
                retry_after_s=retry_after_s,
                code="queue_full",
            )
        case never:
            assert_never(never)
