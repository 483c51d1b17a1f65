"""Which headers travel end to end, and which belong to one connection.

A proxy ends one HTTP connection and begins another. Framing and connection management
are decided anew on each side (RFC 9110 section 7.6.1), so their headers never cross:
what crosses is what `end_to_end` returns, and both sides add their own framing.
"""

from collections.abc import Sequence

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

_NAMES_NOTHING = frozenset({b"keep-alive", b"Keep-Alive", b"close"})


def end_to_end(headers: Sequence[Header]) -> list[Header]:
    """Leave out what belongs to one connection, including what ``connection`` itself names.

    Args:
        headers: Names in lower case.

    Returns:
        The other headers, in order.
    """
    kept: list[Header] = []
    named: set[bytes] = set()
    for header in headers:
        name, value = header
        if name not in CONNECTION_HEADERS:
            kept.append(header)
        elif name == b"connection" and value not in _NAMES_NOTHING:
            named.update(token.strip().lower() for token in value.split(b","))
    return [header for header in kept if header[0] not in named] if named else kept
