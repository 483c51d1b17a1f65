"""A large JSON body without its long strings and arrays, found and read in short steps.

    {"messages": [{"content": "4 MB of text"}], "prompt": [1, 2, ... 6 MB]}     body
    {"messages": [{"content": "MARK0;"}], "prompt": "MARK1;"}                    skeleton
                                 └ long value 0: where the text is      └ long value 1: the array is

The skeleton decodes at once and is treated like any other body; wherever a placeholder turns up again, the
long value takes its place, piece by piece. So only what is read is copied, and no step takes longer than a
slice does. A placeholder opens with a secret of this process, so no client can write one.

Strings are found by their quotes: numpy finds all quotes of a slice (0.15 ms per MB); a quote behind a single
backslash is no end. Arrays of numbers only (token ids) are looked for where there is no quote for long.

The skeleton is bounded, too, since decoding two million empty messages of 8 MB took 10 s: its size, objects,
arrays and strings are counted first. The bounds are far above conversations of a million tokens.
"""

import re
import secrets
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from router.errors import ClientError
from router.gateway.conversation import (
    BILLING_HEADER,
    DATA_HEAD,
    DATA_HEAD_END,
    DATA_HEAD_MAX,
    canonical_json,
    encode,
    loads,
    opaque,
)
from router.gateway.long_string import is_plain_ascii
from router.gateway.step_runner import Steps

DIGEST_BYTES = 16

_MARK = f"hole-{secrets.token_hex(8)}-"
_MARK_BYTES = _MARK.encode()
_PLACEHOLDER = re.compile(rf"{_MARK}(\d+);")
_PLACEHOLDER_BYTES = re.compile(_PLACEHOLDER.pattern.encode())
_PLACEHOLDER_KEY = re.compile(_PLACEHOLDER_BYTES.pattern + b'":')

_QUOTE, _BACKSLASH, _OPEN, _CLOSE, _U, _SPACE = b'"\\[]u '
_BILLING = BILLING_HEADER.encode()

_ESCAPE_BYTES = 6
"""Length of ``\\u00e4``, the longest escape."""

_SURROGATES = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]")
"""Two escapes that are one character."""

_IDS = msgspec.json.Decoder(list[int])

SKELETON_BYTES_MAX = 16 * 1024 * 1024
CONTAINERS_MAX = 100_000
"""Objects and arrays, of 3 us each: 30,000 messages with parts."""
STRINGS_MAX = 250_000
"""Strings of a skeleton, field names included."""
WEIGHED_BYTES_MIN = 64 * 1024
"""A smaller skeleton cannot exceed the bounds."""
ARRAY_BYTES_MAX = 1024 * 1024
"""Longest array of numbers within a tool or its arguments; it is decoded at once."""

_OBJECT = ord("{")
_NO_QUOTES = np.empty(0, np.intp)

Piece = bytes | memoryview


class Unusual(Exception):
    """A long string or array stands where no engine takes one: only parsing at once says what that means."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Work per step, in bytes.

    Attributes:
        slice_bytes: Searched or handed on in one step, which takes 0.05 to 0.5 ms. Below, numpy's 10 µs per
            slice begin to show.
        text_bytes: Bytes of a string or array decoded in one call: they stay in the processor's cache.
        long_value_bytes_min: Shorter strings stay in the skeleton: to cut one out costs as much as to decode
            it. More than any name of a field that we read.
    """

    slice_bytes: int = 256 * 1024
    text_bytes: int = 32 * 1024
    long_value_bytes_min: int = 2 * 1024


DEFAULT_SIZES = Sizes()


class LongValue(msgspec.Struct, frozen=True, gc=False):
    """A cut out ``body[start:end]``: a string without its quotes or an array with its brackets."""

    start: int
    end: int
    is_array: bool


class BodyOutline:
    """A body, its long values, and its skeleton, complete when `cut` has ended; ``mark`` is in cut values."""

    mark = _MARK_BYTES

    def __init__(self, body: bytes, sizes: Sizes = DEFAULT_SIZES) -> None:
        self.skeleton = b""
        self._body = body
        self._sizes = sizes
        self._long_values: list[LongValue] = []
        self._hashed: dict[bytes, bytes] = {}
        self._kept: list[bytes] = []
        self._kept_to = 0

    def cut(self) -> Steps:
        """Find the long values. If the body is not JSON, neither is the skeleton."""
        body, long = self._body, self._sizes.long_value_bytes_min
        opened: list[int] = []  # the quote that opened the string we are in
        closed = position = 0  # end of the string before, and progress
        while position < len(body):
            quotes, position = self._quotes(position)
            if not len(quotes):
                yield
                continue
            edges = np.concatenate((np.array([closed, *opened], np.intp), quotes))  # closed, opened, ...
            lengths = np.diff(edges)
            lengths[: len(opened)] = 0  # checked with the slice before
            for index in np.flatnonzero(lengths > long).tolist():
                start, end = int(edges[index]), int(edges[index + 1])
                if index % 2 == 0:
                    yield from self._cut_arrays(start, end)
                elif not body.startswith(_BILLING, start + 1):
                    self._cut_out(LongValue(start + 1, end, is_array=False))
            in_string = len(edges) % 2 == 0
            opened = [int(edges[-1])] if in_string else []
            closed = int(edges[-2] if in_string else edges[-1])
            yield
        if not opened and len(body) - closed > long:
            yield from self._cut_arrays(closed, len(body))
        self._kept.append(body[self._kept_to :])
        self.skeleton = b"".join(self._kept)
        self._kept.clear()
        if len(self.skeleton) >= WEIGHED_BYTES_MIN:
            yield from self._weigh()

    def _weigh(self) -> Steps:
        """Raise `ClientError` if there is too much to decode."""
        skeleton = self.skeleton
        if len(skeleton) > SKELETON_BYTES_MAX:
            raise too_complex()
        reader = BodyOutline(skeleton, self._sizes)
        containers = quotes_before = position = 0
        while position < len(skeleton):
            start = position
            quotes, position = reader._quotes(start)
            values = np.frombuffer(skeleton, np.uint8, position - start, start)
            opens = np.flatnonzero((values == _OPEN) | (values == _OBJECT)) + start
            containers += int(((np.searchsorted(quotes, opens) + quotes_before) % 2 == 0).sum())
            quotes_before += len(quotes)
            if containers > CONTAINERS_MAX or quotes_before > 2 * STRINGS_MAX:
                raise too_complex()
            yield

    def _quotes(self, start: int) -> tuple[npt.NDArray[np.intp], int]:
        """Return where strings begin or end in the slice from here, and where the next slice begins."""
        end = min(start + self._sizes.slice_bytes, len(self._body))
        if self._body.find(b'"', start, end) < 0 and self._body[end - 1] != _BACKSLASH:
            return _NO_QUOTES, end
        values = np.frombuffer(self._body, np.uint8, end - start, start)
        quotes = np.flatnonzero(values == _QUOTE)
        escaped = values[quotes - 1] == _BACKSLASH
        escaped[:1] &= quotes[:1] > 0  # no slice begins with something escaped
        behind = quotes[escaped]
        ends_in_one = self._body[end - 1] == _BACKSLASH
        if ends_in_one or (values[behind - 2] == _BACKSLASH).any():
            # A backslash may be escaped itself: only behind an odd number of them is a quote no end.
            backslashes = np.flatnonzero(values == _BACKSLASH)
            runs = backslashes[np.diff(backslashes, prepend=-2) > 1]
            escaped[escaped] = (behind - runs[np.searchsorted(runs, behind) - 1]) % 2 == 1
            if ends_in_one and (len(values) - runs[-1]) % 2 and end < len(self._body):
                end -= 1  # it escapes the next slice's first byte
        return quotes[~escaped] + start, end

    def _cut_arrays(self, start: int, end: int) -> Steps:
        """Cut out the long arrays without arrays or objects, of a stretch without strings."""
        opened: list[int] = []
        step_bytes = self._sizes.slice_bytes
        for position in range(start, end, step_bytes):
            values = np.frombuffer(self._body, np.uint8, min(step_bytes, end - position), position)
            brackets = np.flatnonzero((values == _OPEN) | (values == _CLOSE)) + position
            brackets = np.concatenate((np.array(opened, np.intp), brackets))
            for index in np.flatnonzero(np.diff(brackets) > self._sizes.long_value_bytes_min).tolist():
                first, last = int(brackets[index]), int(brackets[index + 1])
                is_array = self._body[first] == _OPEN and self._body[last] == _CLOSE
                if is_array and self._body.find(b"{", first, last) < 0:
                    self._cut_out(LongValue(first, last + 1, is_array=True))
            opened = brackets[-1:].tolist()
            yield

    def _cut_out(self, long_value: LongValue) -> None:
        index = len(self._long_values)
        name = _name(index)
        self._hashed[opaque(name)] = name
        self._kept += (self._body[self._kept_to : long_value.start], _placeholder(index, long_value))
        self._kept_to = long_value.end
        self._long_values.append(long_value)

    def place(self, position: int) -> int:
        """Return the place in the body of a place in the skeleton outside of placeholders."""
        moved = 0
        for index, long_value in enumerate(self._long_values):
            if position <= long_value.start - moved:
                break
            moved += long_value.end - long_value.start - len(_placeholder(index, long_value))
        return position + moved

    # Long values.

    @property
    def has_arrays(self) -> bool:
        """True if arrays of numbers were cut out: in the skeleton they are strings."""
        return any(long_value.is_array for long_value in self._long_values)

    def refuse(self, *values: str | None) -> None:
        """Raise `Unusual` if one of these values was cut out."""
        if any(value is not None and _MARK in value for value in values):
            raise Unusual

    def refuse_arrays(self, text: Any) -> None:
        """Raise `Unusual` if this is an array of numbers that was cut out, or a list with one."""
        for value in text if isinstance(text, list) else [text]:
            long_value = self._long_value(value) if isinstance(value, str) else None
            if long_value is not None and long_value.is_array:
                raise Unusual

    def filled(self, pieces: Iterable[bytes]) -> Iterator[Piece]:
        """Yield the stream of a conversation (`conversation.append_turns`) with its long values.

        Pieces have about `Sizes.slice_bytes`; a step that brought none yields an empty one. Plain text is not
        copied. Raises `ValueError` if a long value is not JSON, or not text.
        """
        gathered: list[Piece] = []
        gathered_bytes = 0
        for piece in self._filled(pieces):
            is_slice = len(piece) >= self._sizes.slice_bytes
            if not is_slice:
                gathered.append(piece)
                gathered_bytes += len(piece)
            if is_slice or gathered_bytes >= self._sizes.slice_bytes or not piece:
                yield b"".join(gathered)
                gathered.clear()
                gathered_bytes = 0
            if is_slice:
                yield piece
        yield b"".join(gathered)

    def _filled(self, pieces: Iterable[bytes]) -> Iterator[Piece]:
        for piece in pieces:
            if _MARK_BYTES in piece:
                yield from self._restored(piece)
            elif len(piece) == DIGEST_BYTES and piece in self._hashed:
                digest = xxhash.xxh3_128()
                for part in self._restored(self._hashed[piece], is_content=True):
                    digest.update(part)
                    yield b""
                yield digest.digest()
            else:
                yield piece

    def _restored(self, piece: bytes, *, is_content: bool = False) -> Iterator[Piece]:
        """Yield a text that was cut out, or canonical JSON with its long values.

        Content that is only hashed loses the head of a data URL (`conversation.content_digest`).
        """
        match = _PLACEHOLDER_BYTES.fullmatch(piece)
        if match is not None:
            long_value = self._long_values[int(match[1])]
            if is_content:
                long_value = msgspec.structs.replace(
                    long_value, start=long_value.start + self._data_head_bytes(long_value)
                )
            yield from self._text(long_value, encode)
            return
        if canonical_json(loads(piece)) != piece or _PLACEHOLDER_KEY.search(piece):
            raise Unusual  # written in some other way, or its keys are in another order without its holes
        start = 0
        for match in _PLACEHOLDER_BYTES.finditer(piece):
            long_value = self._long_values[int(match[1])]
            if long_value.is_array:
                if long_value.end - long_value.start > ARRAY_BYTES_MAX:
                    raise Unusual
                yield piece[start : match.start() - 1]
                yield orjson.dumps(orjson.loads(self._body[long_value.start : long_value.end]))
                start = match.end() + 1
            else:
                yield piece[start : match.start()]
                yield from self._text(long_value, _canonical_text)
                start = match.end()
        yield piece[start:]

    def _text(self, long_value: LongValue, written: Callable[[str], bytes]) -> Iterator[Piece]:
        """Yield a string as it is written; `ValueError` if it is not JSON, `Unusual` if it is an array."""
        if long_value.is_array:
            raise Unusual
        body, start = self._body, long_value.start
        while start < long_value.end:
            slice_end = min(start + self._sizes.slice_bytes, long_value.end)
            if is_plain_ascii(body, start, slice_end):
                yield memoryview(body)[start:slice_end]
                start = slice_end
            while start < slice_end:
                end = self._safe_end(start, long_value.end)
                raw = body[start:end]
                yield raw if _is_plain(raw) else written(loads(b'"%b"' % raw))
                start = end

    def _data_head_bytes(self, long_value: LongValue) -> int:
        """Return the length of a base64 data URL's head, 0 without; `Unusual` if only decoding it tells."""
        raw = self._body[long_value.start : min(long_value.start + 2 * DATA_HEAD_MAX, long_value.end)]
        if not raw.startswith(DATA_HEAD.encode()):
            return 0
        head, end, _ = raw.partition(DATA_HEAD_END.encode())
        written = head.replace(rb"\/", b"/")
        if b"\\" in written or not written.isascii():
            raise Unusual
        return len(head + end) if end and len(written + end) <= DATA_HEAD_MAX else 0

    def token_ids(self, prompt: str) -> Iterator[bytes] | None:
        """Return the packed token ids of a prompt in pieces; None if it is text.

        Iteration raises `Unusual` if they are no token ids.
        """
        long_value = self._long_value(prompt)
        return self._token_ids(long_value) if long_value is not None and long_value.is_array else None

    def _token_ids(self, long_value: LongValue) -> Iterator[bytes]:
        start, last = long_value.start + 1, long_value.end - 1
        while start < last:
            end = self._body.find(b",", start + self._sizes.text_bytes, last)
            if end < 0:
                end = last
            if end - start > 2 * self._sizes.text_bytes:
                raise Unusual  # no id is so long
            try:
                ids = _IDS.decode(b"[%b]" % self._body[start:end])
            except msgspec.DecodeError as error:
                raise Unusual from error
            yield packed_ids(ids)
            start = end + 1

    def digest(self, canonical: bytes) -> bytes:
        """Hash canonical JSON; `filled` replaces the hash if the JSON has placeholders."""
        known_as = opaque(canonical)
        if _MARK_BYTES in canonical:
            self._hashed[known_as] = canonical
        return known_as

    def _long_value(self, value: str) -> LongValue | None:
        match = _PLACEHOLDER.fullmatch(value) if value.startswith(_MARK) else None
        return None if match is None else self._long_values[int(match[1])]

    def _safe_end(self, start: int, end: int) -> int:
        """Return the end of a slice of a string, within no character, escape or pair of surrogates."""
        body = self._body
        if end - start <= self._sizes.text_bytes:
            return end
        at = start + self._sizes.text_bytes
        for _ in range(3):  # a character has four bytes at most
            at -= body[at] & 0xC0 == 0x80
        while (escape := body.rfind(b"\\", max(start, at - _ESCAPE_BYTES), at)) >= 0:
            before = body[start : escape + 1]
            if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
                break  # an escaped backslash, and complete
            length = _ESCAPE_BYTES if body[escape + 1] == _U else 2
            if escape + length <= at and not _SURROGATES.match(body, escape):
                break
            at = escape
        return at if at > start else end


def too_complex() -> ClientError:
    """Return the error for a body whose decoding would take too long."""
    return ClientError(
        f"The body is too complex: it has more than {CONTAINERS_MAX} objects and arrays, {STRINGS_MAX} "
        "strings, or too many bytes of anything but text and token ids.",
        code="too_complex",
        status=413,
    )


def _name(index: int) -> bytes:
    return _MARK_BYTES + b"%d;" % index


def _placeholder(index: int, long_value: LongValue) -> bytes:
    return b'"%b"' % _name(index) if long_value.is_array else _name(index)


def packed_ids(ids: list[int]) -> bytes:
    """Return token ids as 32-bit integers; raise `Unusual` if one does not fit."""
    try:
        return array("I", ids).tobytes()
    except (OverflowError, TypeError) as error:
        raise Unusual from error


def _canonical_text(text: str) -> bytes:
    """Return text as in canonical JSON; `Unusual` if a lone surrogate changes the JSON around it."""
    try:
        return orjson.dumps(text)[1:-1]
    except TypeError as error:
        raise Unusual from error


def _is_plain(raw: bytes) -> bool:
    """Return True if a string of JSON is written as it reads; raise `ValueError` if it is not UTF-8."""
    if b"\\" in raw or np.minimum.reduce(np.frombuffer(raw, np.uint8)) < _SPACE:
        return False
    if not raw.isascii():
        raw.decode()
    return True
