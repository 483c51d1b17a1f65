"""The errors that clients are told when nothing comes of a wait, or of a decision.

the core      QueueFull  Displaced  Expired  Unserved  Unpublished  Shed
the client    429        429        408      its own   500          429 or 503
"""

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
from router.errors import NoWorker, RequestDisplaced, RequestExpired, RequestRejected, RouterError
from router.gateway.answer import crashed


def error_of(refusal: QueueRefusal) -> RouterError:
    """Return the error for a request that the queue or all workers refuse."""
    match refusal:
        case Shed(reason=reason, retry_after_s=retry_after_s, detail=detail):
            if reason == SLO_UNREACHABLE:
                message = f"The request would miss its service level: {detail}."
                return RequestRejected(message, retry_after_s=retry_after_s, code=SLO_UNREACHABLE)
            return NoWorker("No worker can take a request now.", retry_after_s=retry_after_s)
        case Unserved(error=error):
            return error if isinstance(error, RouterError) else crashed()
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
