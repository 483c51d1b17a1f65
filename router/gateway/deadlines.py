"""How long a client is willing to wait: the header ``x-request-timeout``.

Seconds, with or without a unit: ``30``, ``2.5``, ``30s``, ``500ms``, from the last byte of the request. A
request whose answer has not begun by then is expired with 408, whether it waits here or at a
worker; an answer that has begun ends with an error, as after ``server.request_timeout_s``.
"""

import re

from router.errors import ClientError

TIMEOUT_HEADER = b"x-request-timeout"

_VALUE = re.compile(rb"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s)?\s*")


def timeout_s_of(value: bytes) -> float:
    """Read the header's value, seconds.

    Raises:
        ClientError: If it is none, or not above 0.
    """
    match = _VALUE.fullmatch(value)
    seconds = 0.0 if match is None else float(match[1]) / (1000.0 if match[2] == b"ms" else 1.0)
    if seconds <= 0:
        raise ClientError(
            f"{TIMEOUT_HEADER.decode()}: {value[:100].decode('latin-1')!r} is no time above 0; "
            "write seconds, for example 30, 2.5s or 500ms.",
            code="invalid_value",
            param=TIMEOUT_HEADER.decode(),
        )
    return seconds
