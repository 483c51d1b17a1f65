"""Fields added to a JSON object that a client sent, in front of the brace that ends it.

    {"model":"m","messages":[...]}                        what the client sent
    {"model":"m","messages":[...],"bootstrap_room":7}     what a worker gets: pieces, nothing copied

Of a name that is there twice every JSON parser of an engine takes the last value (Python's ``json``, orjson,
pydantic's jiter, msgspec, serde_json's maps), so that a client can neither keep nor forge what is added.
"""

from collections.abc import Sequence

Piece = bytes | memoryview

_LOOK_BYTES = 4096
"""A body may end in as much white space as its client likes: so many bytes are looked at in one go."""


def with_fields(body: Sequence[Piece], fields: bytes) -> tuple[Piece, ...]:
    """A body with fields added.

    Args:
        body: A JSON object in pieces, surrounded by nothing but white space.
        fields: What is added: ``"name":value``, with commas between several.
    """
    index, end = _closing(body)
    pieces = body[: index + 1]
    empty = not any(_has_quote(piece) for piece in pieces)
    last = memoryview(body[index])
    added = b"%b}" % fields if empty else b",%b}" % fields
    return (*body[:index], last[:end], added)


def _closing(body: Sequence[Piece]) -> tuple[int, int]:
    """Where the brace is that ends the object: in which piece, and where in it."""
    for index in range(len(body) - 1, -1, -1):
        piece = body[index]
        end = piece.rfind(b"}") if isinstance(piece, bytes) else _rfind(piece)
        if end >= 0:
            return index, end
    raise AssertionError("a body that was parsed is an object")


def _rfind(piece: memoryview) -> int:
    for stop in range(len(piece), 0, -_LOOK_BYTES):
        start = max(0, stop - _LOOK_BYTES)
        at = bytes(piece[start:stop]).rfind(b"}")
        if at >= 0:
            return start + at
    return -1


def _has_quote(piece: Piece) -> bool:
    """Whether a name begins in it."""
    if isinstance(piece, bytes):
        return b'"' in piece
    return any(b'"' in bytes(piece[at : at + _LOOK_BYTES]) for at in range(0, len(piece), _LOOK_BYTES))
