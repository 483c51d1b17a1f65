"""Raw HTTP: heads that mean two things or nothing, and many requests in one write."""

from random import Random

from loadtest.fuzz.actions import Wire

PIPELINED = (2, 40, 1_000, 5_000, 5_000)
"""Requests in one write."""

_METHODS = (
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"PATCH",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"get",
    b"X" * 40,
    b"",
)
_PATHS = (
    *(
        b"/v1/models",
        b"/health",
        b"/metrics",
        b"/workers",
        b"/queue",
        b"/tree",
        b"/settings",
        b"/v1/completions",
    ),
    *(
        b"/../workers",
        b"//workers",
        b"/%2e%2e/workers",
        b"/v1/models/%ff%fe",
        b"/v1/models/\xff",
        b"*",
        b"workers",
    ),
    *(b"/workers/%00", b"/workers/" + b"a" * 9_000, b"/?" + b"q=1&" * 2_000, b"/a#b", b"http://other/health"),
    *(
        b"/queue/tickets?limit=" + b"9" * 400,
        b"/tree?limit=%C2%B2",
        b"/decisions?limit=-1",
        b"/audit?limit=1e400",
    ),
    *(
        b"/workers/%ED%A0%80",
        b"/v1/models/\xed\xa0\x80",
        b"/settings/history?limit=NaN",
        b"ftp://x/",
        b"/a b",
    ),
)
_VERSIONS = (b"HTTP/1.1",) * 6 + (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"http/1.1", b"")
_LINES = (
    *(
        b"content-length: 5",
        b"content-length: +5",
        b"content-length: 5, 5",
        b"content-length: 0x5",
        b"content-length: -1",
    ),
    *(
        b"content-length: 99999999999999999999",
        b"content-length:",
        b"content-length: \xc2\xb2",
        b"content-length: 1e3",
    ),
    *(
        b"transfer-encoding: chunked",
        b"transfer-encoding: x, chunked",
        b"transfer-encoding: chunked, identity",
    ),
    *(
        b"transfer-encoding : chunked",
        b"Transfer-Encoding:\x0bchunked",
        b"expect: 100-continue",
        b"expect: 200-ok",
    ),
    *(b"connection: upgrade", b"upgrade: h2c", b"connection: close", b"connection: content-length, host"),
    *(
        b"host: a",
        b"host:",
        b"host: a b",
        b" folded",
        b"\tfolded",
        b"x: a\x00b",
        b": empty",
        b"no colon",
        b"x: \r y",
    ),
    *(
        b"content-encoding: gzip",
        b"x-pad: " + b"p" * 70_000,
        b"te: trailers",
        b"trailer: host",
        b"x: \xff\xfe",
    ),
    *(b"authorization: Bearer \xff", b"authorization: " + b"B" * 9_000, b"cookie: a=b", b"range: bytes=0-"),
)
_BODIES = (
    *(
        b"",
        b"hello",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5;ext=1\r\nhello\r\n0\r\nx: y\r\n\r\n",
        b"\r\n",
    ),
    *(
        b"fffffffffffffffff\r\nx",
        b"-1\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: a\r\n\r\n",
    ),
    *(b"2\r\n{}\r\n" * 3_000 + b"0\r\n\r\n", b"5;" + b"e" * 9_000 + b"\r\nhello\r\n0\r\n\r\n"),
)
_COMPLETE = b'{"model":"emulated","prompt":"x","max_tokens":1}'


def _one(random: Random) -> bytes:
    line = b" ".join((random.choice(_METHODS), random.choice(_PATHS), random.choice(_VERSIONS)))
    lines = [line]
    if random.random() < 0.85:
        lines.append(b"host: 127.0.0.1")
    lines += random.choices(_LINES, k=random.choice((0, 1, 1, 2, 2, 3, 150)))
    end = random.choices((b"\r\n", b"\n", b"\r"), (12, 1, 1))[0]
    return end.join([*lines, b"", b""]) + random.choice(_BODIES)


def _pipelined(random: Random) -> bytes:
    """Many requests in one write; some offer an upgrade."""
    count = random.choice(PIPELINED)
    lines = [b"GET /health HTTP/1.1", b"host: a"]
    body = b""
    match random.randrange(5):
        case 0 | 1:
            lines += [b"connection: upgrade", b"upgrade: a"]
        case 2:
            lines = [b"POST /v1/completions HTTP/1.1", b"host: a", b"content-type: application/json"]
            lines.append(b"content-length: %d" % len(_COMPLETE))
            body, count = _COMPLETE, min(count, 1_000)
        case 3:
            lines.append(b"content-length: 0")
        case _:
            lines = [b"GET /v1/models HTTP/1.1", b"host: a", random.choice(_LINES)]
    return (b"\r\n".join([*lines, b"", b""]) + body) * count


def heads(random: Random) -> Wire:
    """Bytes that look like requests, more or less."""
    if random.random() < 0.25:
        data = _pipelined(random)
    elif random.random() < 0.1:
        data = random.randbytes(random.choice((1, 100, 70_000)))
    else:
        data = b"".join(_one(random) for _ in range(random.choice((1, 1, 1, 2, 5))))
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 0, 1, 5))))
    pieces = tuple(
        data[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True) if begin < end
    )
    return Wire(pieces, random.randrange(2), leaves=random.random() < 0.15)
