"""Which headers travel end to end, and which belong to one connection.

A proxy ends one HTTP connection and begins another. Framing and connection management
are decided anew on each side (RFC 9110 section 7.6.1), so their headers never cross:
neither `CONNECTION_HEADERS` nor those that ``connection`` itself names (`named_by`). A worker
sees of a request only what is on a list (`lines_of`), and so does a client of an answer (`ANSWER_HEADERS`):
a worker is not trusted with the cookies, the cross-origin rules or the redirects of the gateway's host, nor
with headers that proxies in front of the gateway obey (``x-accel-redirect``, ``x-envoy-...``).
"""

from collections.abc import Container, Iterable

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
"""What of a worker's answer its client sees, beside ``upstream.answer_headers``: what the body is, and what
OpenAI's SDKs go by."""

OUR_HEADERS = (b"x-request-id", b"x-cacheway-", b"x-ratelimit-")
"""What only the gateway says to clients, by how it begins."""


def may_pass(name: bytes) -> bool:
    """Whether a setting may let clients see this header of a worker's answer."""
    return name not in CONNECTION_HEADERS and not name.startswith(OUR_HEADERS)


_NAMES_NOTHING = frozenset({b"", b"keep-alive", b"Keep-Alive", b"close"})


def named_by(connection: bytes) -> frozenset[bytes]:
    """The headers that a ``connection`` header declares to belong to this connection, in lower case."""
    if connection in _NAMES_NOTHING:
        return frozenset()
    return frozenset(token.strip().lower() for token in connection.split(b","))


def lines_of(headers: Iterable[Header], allowed: Container[bytes], hop_names: Container[bytes] = ()) -> bytes:
    """Write header lines.

    Args:
        headers: Names in lower case, free of CR and LF.
        allowed: Names of those to write.
        hop_names: Names of those not to write all the same.
    """
    return b"".join(
        [b"%b: %b\r\n" % header for header in headers if header[0] in allowed and header[0] not in hop_names]
    )
