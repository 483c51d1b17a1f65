"""How an error of ours is written as an answer, whoever answers."""

import math

from router.errors import RouterError, error_body


def retry_after(seconds: float) -> bytes:
    """A Retry-After header value: whole seconds, at least one."""
    return b"%d" % max(1, math.ceil(seconds))


def error_answer(error: RouterError) -> tuple[bytes, bytes]:
    """Header lines and body of an answer that is an error."""
    lines = b"content-type: application/json\r\n"
    if error.status in (429, 503):
        lines += b"retry-after: %b\r\n" % retry_after(getattr(error, "retry_after_s", 1.0))
    return lines, error_body(error)
