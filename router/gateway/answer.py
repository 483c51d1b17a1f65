"""Small pieces of answers that the gateway itself writes."""

import logging

from router.errors import RouterError, UpstreamError, WorkerUnreachable, error_body
from router.gateway.endpoints import Endpoint

logger = logging.getLogger(__name__)


def error_event(endpoint: Endpoint, error: RouterError) -> bytes:
    """The last event of an event stream that broke.

    What came before it has ended (`router.gateway.whole_events`). Anthropic's streams name their events; the
    others have data only.
    """
    name = b"event: error\n" if endpoint is Endpoint.MESSAGES else b""
    return name + b"data: " + error_body(error) + b"\n\n"


def crashed() -> RouterError:
    """Log the exception that is handled, a mistake of ours; and what the client is told of it."""
    logger.exception("request failed inside the gateway", extra={"event": "request.crashed"})
    return RouterError("The gateway failed to serve this request; its log says why.")


def without_worker(error: RouterError) -> RouterError:
    """Return what a client is told of an error that may hear nothing of workers."""
    if not isinstance(error, UpstreamError) or error.code == "request_timeout":
        return error
    shown = UpstreamError("The worker that served this request failed.", code=error.code)
    shown.status = error.status
    return shown


def answered_error(status: int) -> UpstreamError:
    """What a worker's error status is as a failure."""
    return WorkerUnreachable(f"The worker answered {status}.", code=f"upstream_status_{status}")
