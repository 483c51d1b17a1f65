"""Hostile values, as JSON text: numbers at boundaries, texts that cannot be written, names of megabytes.

Everything here is a function of the `Random` that it is given.
"""

import json
from random import Random

NUMBERS: tuple[bytes, ...] = (
    *(b"0", b"-1", b"1", b"-0", b"0.5", b"1e308", b"-1e308", b"1e400", b"1e-400", b"NaN", b"Infinity"),
    *(str(2**power + more).encode() for power in (31, 32, 53, 63, 64, 128) for more in (-1, 0, 1)),
    *(str(-(2**power)).encode() for power in (31, 63, 64)),
    *(str(10**power).encode() for power in (9, 12, 16, 17, 18, 30, 309, 400)),
    *(
        b"9" * 5000,
        b"1e99999999999",
        b'"\xc2\xb2"',
        b'"12"',
        b'"\xd9\xa3"',
        b"true",
        b"[1]",
        b"null",
        b"016384",
    ),
)
"""Bounds of counts, lengths and times: those of 32 and 64 bits, of float64, and of ``int``."""

TEXTS: tuple[bytes, ...] = (
    b'""',
    b'"\\ud800"',
    b'"x\\udfff\\ud800y"',
    b'"\\u0000"',
    b'"a\\r\\nx-evil: 1\\r\\n\\r\\n"',
    b'"\xff\xfe"',
    b'"\xc2\xb2"',
    b'"<script>alert(1)</script>"',
    b'"http://169.254.169.254/latest/meta-data"',
    b'"../../etc/passwd"',
    b'"{}:*"',
    b'"' + b"%00" * 20 + b'"',
    b'"\xe2\x80\xae\xf0\x9f\x92\xa9"',
)

LENGTHS = (255, 256, 257, 4_096, 65_536, 240_000, 3_000_000)
"""Lengths of texts: around the bound of a name, and far beyond."""

DEPTHS = (3, 60, 500, 2_000, 100_000)


def number(random: Random) -> bytes:
    """A number that something may count with, or what stands where one should."""
    return random.choice(NUMBERS)


def text(random: Random) -> bytes:
    """A text that breaks something, or is far too long."""
    if random.random() < 0.3:
        return b'"%b"' % (
            random.choice((b"z", b"\\u00e9", b"\xe2\x82\xac", b"\\")) * 2 * random.choice(LENGTHS[:-1])
        )
    if random.random() < 0.03:
        return b'"%b"' % (b"z" * LENGTHS[-1])
    return random.choice(TEXTS)


def nested(random: Random) -> bytes:
    """Arrays or objects, one inside the other."""
    depth = random.choice(DEPTHS)
    opened, closed = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    closed = random.choice((closed, b""))
    return opened * depth + b"1" + closed * depth


def many(random: Random) -> bytes:
    """An array or an object of many items."""
    count = random.choice((0, 2, 100, 20_000))
    if random.random() < 0.5:
        return b"[" + b",".join([random.choice((b"1", b'"a"', b"{}"))] * count) + b"]"
    key = random.choice((b"a", b"k%d"))
    return b"{" + b",".join(b'"%b":1' % (key % n if b"%" in key else key) for n in range(count)) + b"}"


def value(random: Random) -> bytes:
    """Any of them."""
    return random.choices((number, text, nested, many), (6, 5, 1, 1))[0](random)


def member(name: str, content: bytes) -> bytes:
    """One member of an object."""
    return json.dumps(name).encode() + b":" + content


def obj(members: list[bytes]) -> bytes:
    """An object of these members, valid or not."""
    return b"{" + b",".join(members) + b"}"


def damaged(random: Random, data: bytes) -> bytes:
    """The same bytes with something wrong in them: cut, doubled, or with other bytes in between."""
    if not data:
        return b"\xff"
    at = random.randrange(len(data))
    match random.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + random.randbytes(random.choice((1, 3, 40))) + data[at:]
        case 2:
            return data + data
        case 3:
            return b"\xef\xbb\xbf" + data
        case _:
            return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
