"""Headers of clients that pass to workers (`upstream.forward_headers`, decision 0083).

    x-session-id     this header
    anthropic-*      every header that begins so

Never pass, with any setting: headers of a connection, those that the gateway writes itself, those by
which a client would choose a worker, a rank or a host for an engine, and cookies. Keys pass only where
neither the gateway nor the fleet has one.
"""

import logging
import re

from router.proxy import CONNECTION_HEADERS
from router.session_rules import SESSION_HEADERS

logger = logging.getLogger(__name__)

FORWARDED_HEADERS = (
    "accept",
    "anthropic-*",
    "authorization",
    "baggage",
    "content-type",
    "traceparent",
    "tracestate",
    "x-correlation-id",
    *SESSION_HEADERS,
)
"""The default."""

KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key"))
"""Headers that may hold a key of the gateway."""

_NEVER = CONNECTION_HEADERS | {
    b"accept-encoding",  # the gateway reads answers as they come, and ends broken streams with an event
    b"content-encoding",  # it has read the body as JSON
    b"content-md5",
    b"cookie",
    b"cookie2",
    b"digest",  # the body may be edited
    b"content-digest",
    b"repr-digest",
    b"forwarded",
    b"x-real-ip",
    b"x-request-id",  # ours
}

_NEVER_BEGINS = (
    b"x-cacheway-",
    b"x-forwarded-",
    b"x-data-parallel-",  # vLLM: the rank that serves a request; llm-d: the host of one
    b"x-prefiller-",  # llm-d's sidecar connects to the host that these name
    b"x-encoder-",
    b"x-gateway-",
    b"x-envoy-",
    b"x-smg-target-",
    b"sec-websocket-",
    b"proxy-",
)

_PATTERN = re.compile(r"[a-z0-9!#$%&'+.^_`|~-]+\*?")

PATTERNS_MAX = 64
REMEMBERED_MAX = 256
"""Names of headers that are judged once; those of clients are few, and more are judged each time."""

NAME_BYTES_MAX = 256
"""A longer name is judged each time, and is not in the log."""


def header_pattern(pattern: str) -> str:
    """Check one pattern of the setting, and lower it; raise ValueError if it cannot pass."""
    lowered = pattern.lower()
    if not _PATTERN.fullmatch(lowered) or len(lowered) > NAME_BYTES_MAX:
        raise ValueError(f"{pattern[:60]!r} is no name of a header, nor the beginning of one and *")
    if not lowered.endswith("*") and never_passes(lowered.encode()):
        raise ValueError(f"{lowered} never passes to workers")
    return lowered


def never_passes(name: bytes) -> bool:
    """Return True if no setting lets a header pass to workers."""
    return name in _NEVER or name.startswith(_NEVER_BEGINS)


class PassedHeaders:
    """Verdict on each header name, for one value of the setting: ``headers[name]`` is True if it passes.

    The verdict on a name is made once, so that a request costs one look-up for each header.

    Attributes:
        judged: The verdicts made so far, of at most `REMEMBERED_MAX` names.
    """

    def __init__(self, patterns: tuple[str, ...], *, passes_keys: bool) -> None:
        self.judged: dict[bytes, bool] = {}
        self._exact = frozenset(each.encode() for each in patterns if not each.endswith("*"))
        self._begins = tuple(each[:-1].encode() for each in patterns if each.endswith("*"))
        self._passes_keys = passes_keys

    @property
    def dropped(self) -> int:
        """Number of names that were seen and do not pass, at most `REMEMBERED_MAX`."""
        return sum(not passes for passes in self.judged.values())

    def __getitem__(self, name: bytes) -> bool:
        """Judge a name; say so if it was not seen before and does not pass."""
        known = self.judged.get(name)
        if known is not None:
            return known
        listed = name in self._exact or name.startswith(self._begins)
        passes = listed and not never_passes(name) and (self._passes_keys or name not in KEY_HEADERS)
        if len(self.judged) < REMEMBERED_MAX and len(name) <= NAME_BYTES_MAX:
            self.judged[name] = passes
            if not passes and name not in CONNECTION_HEADERS:
                logger.debug(
                    "header does not pass to workers",
                    extra={"event": "header.dropped", "header": name.decode("latin-1")},
                )
        return passes
