"""Small pieces of answers that the gateway itself writes."""

import math

from router.errors import RouterError, error_body
from router.gateway.endpoints import Endpoint


def error_event(endpoint: Endpoint, error: RouterError) -> bytes:
    """The last event of an event stream that broke.

    The blank line in front ends an event that was cut off, so that the client parses ours.
    Anthropic's streams name their events; the others have data only.
    """
    name = b"event: error\n" if endpoint is Endpoint.MESSAGES else b""
    return b"\n\n" + name + b"data: " + error_body(error) + b"\n\n"


def retry_after(seconds: float) -> bytes:
    """A Retry-After header value: whole seconds, at least one."""
    return b"%d" % max(1, math.ceil(seconds))
