"""Hostile writes to Redis: log entries of all kinds, and junk in the namespace's other keys."""

from random import Random
from typing import Any

import msgspec

from loadtest.fuzz.actions import Argument, Commands
from policies import Op

EVIL = "evil"
"""A replica, worker, model or request that does not exist."""

KINDS: tuple[type[Any], ...] = Op.__args__

_FIELDS = {kind: msgspec.structs.fields(kind) for kind in KINDS}

_WHOLE = (0, 1, -1, 5, 2**31, 2**36, 2**36 + 1, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
_REAL = (0.0, -0.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 1e9, 1e9 + 1)
_TEXT = (
    EVIL,
    "",
    "\x00",
    "not a url",
    "http://[::1",
    "http://evil:99999999",
    "x" * 257,
    "y" * 70_000,
    "²",
    "a\nb",
)


def _wrong(random: Random, depth: int = 0) -> Any:
    match random.randrange(8 if depth < 3 else 5):
        case 0:
            return random.choice(_WHOLE)
        case 1:
            return random.choice(_REAL)
        case 2:
            return random.choice(_TEXT)
        case 3:
            return random.choice((None, True, False))
        case 4:
            return random.randbytes(random.choice((0, 3, 8, 64, 4096)))
        case 5:
            return [_wrong(random, depth + 1) for _ in range(random.choice((0, 1, 3, 200)))]
        case 6:
            return {
                str(_wrong(random, 3))[:300]: _wrong(random, depth + 1)
                for _ in range(random.choice((0, 1, 3)))
            }
        case _:
            return {EVIL: [random.choice(_WHOLE), random.choice(_WHOLE)]}


def _right(random: Random, kind: Any, now_us: int) -> Any:
    """A value of a field's type, near its bounds; it never names an existing part of the fleet."""
    name = str(kind)
    if "dict" in name:
        return {} if random.random() < 0.5 else {EVIL: _wrong(random)}
    if "tuple" in name or "list" in name or "Path" in name:
        return [] if random.random() < 0.5 else [random.randbytes(8 * random.choice((1, 2, 500)))]
    if "bytes" in name:
        return random.randbytes(8 * random.choice((0, 1, 3)))
    if "bool" in name:
        return random.choice((True, False))
    if "float" in name:
        return random.choice(_REAL)
    if "int" in name:
        return random.choice((*_WHOLE, now_us))
    return random.choice((EVIL, "http://127.0.0.1:9", "plain", "prefill", "closed", "{}"))


def operation(random: Random, now_us: int = 2**50) -> list[Any]:
    """One operation: of a kind that there is, with values at their bounds or beyond."""
    kind = random.choice(KINDS)
    fields = _FIELDS[kind]
    made: list[Any] = [kind.__struct_config__.tag]
    for field in fields[: random.randrange(len(fields) + 1) if random.random() < 0.1 else len(fields)]:
        hostile = random.random() < 0.15
        made.append(_wrong(random) if hostile else _right(random, field.type, now_us))
    if random.random() < 0.05:
        made[0] = random.choice((0, 9, 99, -1, 2**63, "evil"))
    return made


def _batch(random: Random) -> bytes:
    match random.randrange(8):
        case 0:
            return random.randbytes(random.choice((0, 1, 50, 5_000)))
        case 1:
            return random.choice((b"\x91", b"\x81\xa1a")) * random.choice((100, 2_000, 100_000)) + b"\xc0"
        case 2:
            return random.choice(
                (b"\x91\x93\x0c\xa2\xff\xfe\x01", b"\xdc\xff\xff" + b"\xc0" * 65_535, b"\xc1\xff\x00")
            )
        case 3:
            return b"\xdd\xff\xff\xff\xff" + b"\xc0" * 10
        case _:
            data = msgspec.msgpack.encode([operation(random) for _ in range(random.choice((1, 1, 4, 50)))])
            if random.random() < 0.2:
                at = random.randrange(len(data))
                data = data[:at] + random.randbytes(random.choice((1, 4))) + data[at + 1 :]
            return data


def _entry(random: Random) -> tuple[Argument, ...]:
    fields: list[Argument] = [
        "v",
        1,
        "r",
        random.choice((EVIL, "evil-2", b"\xff\xfe", "r" * 5_000)),
        "o",
        _batch(random),
    ]
    if random.random() < 0.1:
        at = random.choice((1, 3))
        fields[at] = random.choice((b"\xff", "", 2**63 - 1, "two"))
    if random.random() < 0.05:
        fields = [random.choice(("v", "x", b"\xff")), 1]
    if random.random() < 0.05:
        fields += ["s", random.choice((b"\xff", "1", 2**60))]
    return ("XADD", "key:log", "*", *fields)


def _junk(random: Random) -> tuple[Argument, ...]:
    odd: tuple[Argument, ...] = (b"\xff\xfe", "", "evil", 2**63 - 1, "9" * 400, "-1", "1e300", "\u00b2")
    one = random.choice(odd)
    fields = ("v", "id", "at", "name", "n", "size", "sum", "mark", "bad")
    return random.choice(
        (
            (
                "ZADD",
                "key:replicas",
                random.choice(("1e300", "-inf", "5", "nan")),
                random.choice((b"\xff\xfe", EVIL, "x" * 5_000)),
            ),
            ("SET", f"key:replica:{EVIL}", one),
            ("HSET", "key:snap", random.choice(fields), one),
            ("HSET", "key:snap", "at", 2**60, "id", "99999999999999-0", "mark", "99999999999999-0"),
            ("DEL", "key:snap"),
            ("SET", "key:snap", one),
            ("SET", "key:lease", one),
            ("LPUSH", "key:lease", one),
            ("SET", "key:probe", one),
            ("SET", "key:log", one),
            ("SET", "key:replicas", one),
            ("HSET", f"key:account:{EVIL}", random.choice(("a", "s1", "h", EVIL)), one),
            ("SET", "key:account:default", one),
            ("HSET", "key:snap:evil", 0, random.randbytes(40)),
        )
    )


def entries(random: Random) -> Commands:
    """One to four commands to Redis."""
    commands = [
        (_entry if random.random() < 0.75 else _junk)(random) for _ in range(random.choice((1, 1, 2, 4)))
    ]
    return Commands(tuple(commands))
