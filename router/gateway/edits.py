"""Edits of a client's body: members of a JSON object written over or taken out, the rest unchanged.

    {"model":"m","rid":"x","messages":[...],"cache_salt":"s"}     from the client
    {"model":"m",          "messages":[...],"cache_salt":"pV4.."}  to the worker: nothing is copied

A name may occur several times, and be written with escapes. Engines take the last one of two, but other
readers may not: every one is found. Members are found by decoding, once for each time that the name occurs
and once more, 0.3 ms per MB; few requests have such a member at all.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from router.errors import ClientError
from router.offsets import Edit, offset

TIMES_MAX = 8
"""A name that occurs more often is refused: each time takes a pass over the body."""

_ABSENT = msgspec.Raw()

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

_SPACE = re.compile(rb"[ \t\r\n]*")


class Member(NamedTuple):
    """A member of an object, in bytes: the opening quote of its name, begin and end of its value."""

    begin: int
    start: int
    end: int


@lru_cache(maxsize=64)
def _decoder(name: str) -> Callable[[bytes], msgspec.Struct]:
    fields = [("value", msgspec.Raw, _ABSENT)]
    return msgspec.json.Decoder(msgspec.defstruct("Found", fields, rename={"value": name}, gc=False)).decode


def members(text: bytes, name: str) -> list[Member]:
    """Find each member of a name of letters and underscores in a JSON object, in order.

    Raises `ClientError` beyond `TIMES_MAX` times, `ValueError` if the text is not JSON as the standard has
    it.
    """
    found: list[Member] = []
    decode, data = _decoder(name), decodable(text)
    while (raw := decode(data).value) is not _ABSENT:  # type: ignore[attr-defined]
        if len(found) == TIMES_MAX:
            raise ClientError(f"{name} is there too often.", code="invalid_value", param=name)
        start = offset(raw, data)
        colon = data.rindex(b":", 0, start)
        quote = data.rindex(b'"', 0, colon)
        begin = data.rindex(b'"', 0, quote)  # no escape of a letter is a quote
        found.append(Member(begin, start, start + len(memoryview(raw))))
        data = data[:begin].rstrip().removesuffix(b",") + b"}"
    return found[::-1]


def appended(text: bytes, names: Iterable[str], number: int) -> Edit:
    """Return the edit that gives an object, not empty, more members at its end, all of the same number.

    Python's engines take the last one of two members of a name.
    """
    at = text.rindex(b"}")
    return at, at, b"".join(b',"%b":%d' % (name.encode(), number) for name in names)


def decodable(text: bytes) -> bytes:
    """Return JSON that msgspec decodes, with the same names at the same places.

    Python, and so the engines, read lone surrogates, which agents cut out of emoji.
    """
    return _SURROGATE.sub(rb"\\u0041", text)


def removal(text: bytes, taken: Iterable[Member]) -> list[Edit]:
    """Return the edits that take members out of an object, each with one comma."""
    spans: list[list[int]] = []
    for member in sorted(taken):
        end = _skip(text, member.end)
        end = _skip(text, end + 1) if text[end] == ord(",") else member.end
        if spans and spans[-1][1] == member.begin:
            spans[-1][1] = end
        else:
            spans.append([member.begin, end])
    if spans and text[_skip(text, spans[-1][1])] == ord("}"):  # the last member: its comma is before it
        before = text[: spans[-1][0]].rstrip()
        spans[-1][0] = len(before) - before.endswith(b",")
    return [(start, end, b"") for start, end in spans]


def _skip(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
