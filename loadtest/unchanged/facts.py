"""Facts of the code by name, as lines of a text file, and differences of two sets.

    decisions pairs, 8 replicas, queue, seed 2, lmetric = 4c1f0e93ab
    op Placed = 9d0a1b2c3d
    calls per request, pairs = 431

A value is a number, or the hash of a longer text.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

Facts = dict[str, str]

CALLS = "calls "
"""Facts whose names begin so are numbers that may fall, or rise by `NOISE`."""

NOISE = 0.02
"""Calls per request differ by 1 % from run to run, since what answers teach depends on how long they took."""

_SIGN = " = "


def digest_of(text: str | bytes) -> str:
    """Hash of a text, 10 hexadecimal digits."""
    return blake2b(text.encode() if isinstance(text, str) else text, digest_size=5).hexdigest()


def read(path: Path) -> Facts:
    """Read a file of facts, none if there is no file; may raise `OSError`."""
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split(_SIGN, 1) for line in lines if _SIGN in line)


def write(path: Path, facts: Mapping[str, str]) -> None:
    """Write a file of facts; may raise `OSError`."""
    path.write_text("".join(_line(name, value) for name, value in facts.items()))


def append(path: Path, name: str, value: str) -> None:
    """Add a fact at once, so that an interrupted run resumes; may raise `OSError`."""
    with path.open("a") as file:
        file.write(_line(name, value))


def differences(before: Mapping[str, str], now: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Name the facts among ``names`` that differ, a sentence for each in that order."""
    found = []
    for name in names:
        if name not in before:
            found.append(f"{name}: not recorded")
        elif name not in now:
            found.append(f"{name}: no longer there")
        elif before[name] != now[name] and not _within(name, before[name], now[name]):
            found.append(f"{name}: was {before[name]}, is {now[name]}")
    return found


def _within(name: str, before: str, now: str) -> bool:
    return name.startswith(CALLS) and float(now) <= (1.0 + NOISE) * float(before)


def _line(name: str, value: str) -> str:
    return f"{name}{_SIGN}{value}\n"
