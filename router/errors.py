"""Errors that the gateway raises on purpose.

    RouterError
    ├── ClientError             the request is at fault     4xx, 505 or 508; never tried again
    │   └── InvalidKey            a key is needed, and this is none
    ├── Overloaded              we are at fault, for now    408, 429 or 503, the latter two + Retry-After
    │   ├── NoWorker              no worker can take it now
    │   ├── RequestRejected       before it was queued
    │   ├── RequestExpired        its deadline passed in the queue, or before its answer began
    │   ├── RequestDisplaced      one with a better claim took its place in the queue
    │   └── ShuttingDown          this replica ended before the request did
    ├── UpstreamError           a worker is at fault        502 or 504
    │   ├── WorkerUnreachable     nothing of an answer came: may be redispatched
    │   │   ├── WorkerRefused       its port is closed: its cache is gone, too
    │   │   └── HandoverFailed      the legs of a request at two workers did not come together
    │   │       └── TransferFailed    the prefill leg ended well, and its KV did not come
    │   ├── WorkerSilent          connected, no answer in time: may be redispatched
    │   └── StreamBroken          part of an answer came: ends the stream, never redispatched
    └── StateError              Redis or Kubernetes is at fault: degrade and go on

    SettingsError               the operator is at fault: the gateway does not start, or a change is refused

A class knows its HTTP status and its stable ``code``; `error_body` gives the shape of the endpoint's API.
"""

from collections.abc import Iterable

import orjson


class SettingsError(Exception):
    """Settings that the gateway cannot start with: one sentence per problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class RouterError(Exception):
    """Base of all expected failures."""

    status = 500
    code = "internal_error"
    kind = "server_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class ClientError(RouterError):
    """The request is at fault."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.status = status


class InvalidKey(ClientError):
    """A key is needed, and the request carries none that is valid."""

    def __init__(self, *, presented: bool = False) -> None:
        message = (
            "The key is not known here, or not valid now."
            if presented
            else "This gateway needs a key: send it as 'Authorization: Bearer ...'."
        )
        super().__init__(message, code="invalid_api_key", status=401)


class Overloaded(RouterError):
    """We cannot serve it now; trying again later is sensible."""

    status = 503
    code = "overloaded"
    kind = "overloaded_error"

    def __init__(self, message: str, *, retry_after_s: float, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class NoWorker(Overloaded):
    """Workers for the model exist, but none may take a request now."""

    code = "no_worker_available"


class RequestRejected(Overloaded):
    """Rejected before it was queued."""

    status = 429
    code = "rejected"


class RequestExpired(Overloaded):
    """Its deadline passed before its answer began, or an operator ended its wait."""

    status = 408
    code = "request_expired"

    def __init__(self, waited_s: float, *, by_operator: bool = False) -> None:
        what = "An operator ended the request's wait" if by_operator else "The request's deadline passed"
        super().__init__(f"{what} after {waited_s:.3g} s.", retry_after_s=1.0)


class RequestDisplaced(Overloaded):
    """A more urgent request, or a tenant with less waiting, took its place in the queue."""

    status = 429
    code = "request_displaced"

    def __init__(self, *, retry_after_s: float) -> None:
        super().__init__(
            "The queue is full, and a request with a better claim took this one's place.",
            retry_after_s=retry_after_s,
        )


class ShuttingDown(Overloaded):
    """This replica ended before the request did; another one can serve it now."""

    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("This replica of the gateway shut down before the answer ended.", retry_after_s=1.0)


class UpstreamError(RouterError):
    """A worker is at fault, or the request; ``asked`` is True if at least a part of it had been sent."""

    status = 502
    code = "upstream_error"
    kind = "upstream_error"
    asked = True


class WorkerUnreachable(UpstreamError):
    """No byte of an answer came: refused, reset, closed or not connected in time."""

    code = "upstream_unreachable"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, asked: bool = True
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.asked = asked


class WorkerRefused(WorkerUnreachable):
    """No process listens at the worker's address: it is gone, and so is its cache."""

    def __init__(self, message: str) -> None:
        super().__init__(message, asked=False)


class HandoverFailed(WorkerUnreachable):
    """A leg of a request at two workers broke off, or failed its part, before the client's answer began."""

    code = "handover_failed"


class TransferFailed(HandoverFailed):
    """The decode engine failed before its first token, although the prefill leg had ended well."""

    code = "kv_transfer_failed"


class WorkerSilent(UpstreamError):
    """Connected and sent, but no answer within the first-byte timeout."""

    status = 504
    code = "upstream_timeout"


class StreamBroken(UpstreamError):
    """Part of an answer came, then a reset, a truncation, bad framing or the idle timeout."""

    code = "upstream_stream_broken"


class StateError(RouterError):
    """Redis or Kubernetes is at fault."""

    code = "state_unavailable"


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types of Anthropic's errors by status (https://docs.claude.com/en/api/errors); others by their hundred."""


def speaks_anthropic(path: bytes) -> bool:
    """Return True if a path belongs to Anthropic's Messages API, whose errors have a shape of their own."""
    return path.startswith(b"/v1/messages") and path[12:13] in (b"", b"/")


def error_body(error: RouterError, path: bytes = b"", request_id: bytes = b"") -> bytes:
    """Encode an error in the dialect of the endpoint that was asked.

    Anthropic's shape under ``/v1/messages``: ``{"type": "error", "error": {type, message}, "request_id"}``;
    elsewhere OpenAI's: ``{"error": {message, type, param, code}}``.
    """
    if speaks_anthropic(path):
        kind = "api_error" if error.status >= 500 else "invalid_request_error"
        kind = _ANTHROPIC_TYPES.get(error.status, kind)
        shaped: dict[str, object] = {"type": "error", "error": {"type": kind, "message": error.message}}
        if request_id:
            shaped["request_id"] = request_id.decode("latin-1")
        return orjson.dumps(shaped)
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": error.kind,
                "param": error.param,
                "code": error.code,
            }
        }
    )
