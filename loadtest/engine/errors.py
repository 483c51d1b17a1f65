"""Refusals of requests, in the words of each dialect.

    vLLM     {"error": {"message", "type", "param", "code"}}; below /v1/messages
             {"type": "error", "error": {"type", "message"}} (entrypoints/anthropic/api_router.py)
    SGLang   {"object": "error", "message", "type", "param", "code"}; {"error": {"message"}} for /generate

The HTTP status is repeated as ``code``.
"""

import orjson

from loadtest.engine.settings import Dialect

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowedError"}


class RequestRefused(Exception):
    """The request is at fault; the engine does not take it up."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param


def error_body(
    dialect: Dialect,
    status: int,
    message: str,
    *,
    param: str | None = None,
    native: bool = False,
    path: str = "",
) -> bytes:
    """Encode an error; ``param`` is the field at fault, ``native`` means SGLang's own API."""
    kind = _TYPES.get(status, "InternalServerError")
    error = {"message": message, "type": kind, "param": param, "code": status}
    if dialect == "vllm" and path.startswith("/v1/messages"):
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})
    if dialect == "vllm":
        return orjson.dumps({"error": error})
    if native:
        return orjson.dumps({"error": {"message": message}})
    return orjson.dumps({"object": "error"} | error)
