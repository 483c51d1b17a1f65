"""Which headers travel end to end, and which belong to one connection (RFC 9110 section 7.6.1).

Lists say which headers of a request reach a worker (`lines_of`) and which of an answer reach a client
(`ANSWER_HEADERS`): a worker is not trusted with cookies, cross-origin rules or redirects of the gateway's
host, nor with headers that proxies in front of the gateway obey (``x-accel-redirect``, ``x-envoy-...``).
"""

from collections.abc import Container, Iterable
from typing import Protocol

from router.proxy.ports import Header

# RFC 9110 section 7.6.1, plus the framing headers and Host, which each side writes itself, and
# Expect, which is answered before a request is forwarded.
CONNECTION_HEADERS = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

ANSWER_HEADERS = frozenset(
    {
        b"cache-control",
        b"content-disposition",
        b"content-encoding",
        b"content-language",
        b"content-type",
        b"date",
        b"openai-model",
        b"openai-processing-ms",
        b"openai-version",
        b"retry-after",
        b"retry-after-ms",
        b"x-accel-buffering",
        b"x-should-retry",
    }
)
"""Headers of a worker's answer that clients see, beside ``upstream.answer_headers``: they describe the body,
or OpenAI's SDKs read them."""

BODYLESS = frozenset({204, 304})
"""Statuses of answers without a body (RFC 9110 section 6.4.1)."""

OUR_HEADERS = (b"x-request-id", b"x-cacheway-", b"x-ratelimit-")
"""Prefixes of headers that only the gateway sends to clients."""


def may_pass(name: bytes) -> bool:
    """Return True if a setting may let clients see this header of a worker's answer."""
    return name not in CONNECTION_HEADERS and not name.startswith(OUR_HEADERS)


_NAMES_NOTHING = frozenset({b"", b"keep-alive", b"Keep-Alive", b"close"})

NO_NAMES: frozenset[bytes] = frozenset()


def named_by(connection: bytes) -> frozenset[bytes]:
    """Return the header names, in lower case, that a ``connection`` header restricts to its connection."""
    if connection in _NAMES_NOTHING:
        return NO_NAMES
    return frozenset(token.strip().lower() for token in connection.split(b","))


class Verdicts(Protocol):
    """Says which headers pass, by name."""

    def __getitem__(self, name: bytes, /) -> bool:
        """Return True if a header passes."""


def lines_of(headers: Iterable[Header], passes: Verdicts, hop_names: Container[bytes] = ()) -> bytes:
    """Write the header lines that pass, except `hop_names`. Names are in lower case, free of CR and LF."""
    return b"".join(
        [b"%b: %b\r\n" % header for header in headers if passes[header[0]] and header[0] not in hop_names]
    )
