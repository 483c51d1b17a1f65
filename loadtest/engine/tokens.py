"""A tokenizer that costs nothing: a token is four bytes.

Text becomes its UTF-8 bytes, padded with zeros to whole tokens; token ids become 4-byte little-endian
integers. So a prompt as text and as the ids of ``/tokenize`` share their cache blocks, and 400 KB are
tokenized in the time of one copy. Answers are four-letter words (three letters and a space), one token each,
which need no escapes in JSON and follow from the prompt alone.
"""

from array import array
from collections.abc import Sequence
from functools import cache
from random import Random

import xxhash

TOKEN_BYTES = 4

_WORDS = 1 << 14


def pack_text(text: str) -> bytes:
    """Tokenize text; `UnicodeEncodeError` for a lone surrogate."""
    return pad(text.encode())


def pack_ids(ids: Sequence[int]) -> bytes:
    """Pack token ids; `TypeError` for one that is not an integer, `OverflowError` for one beyond 32 bits."""
    return array("I", ids).tobytes()


def unpack_ids(tokens: bytes) -> list[int]:
    """Token ids of packed tokens."""
    return array("I", tokens).tolist()


def unpack_text(tokens: bytes) -> str:
    """Text of packed tokens, without padding; other bytes become replacement characters."""
    return tokens.replace(b"\0", b"").decode(errors="replace")


def count(tokens: bytes) -> int:
    """Number of tokens."""
    return len(tokens) // TOKEN_BYTES


def pad(data: bytes) -> bytes:
    """Fill up the last token."""
    return data + b"\0" * (-len(data) % TOKEN_BYTES)


def seed_of(tokens: bytes, choice: int) -> int:
    """64 bits that depend on every token of a prompt and on the number of the choice."""
    return xxhash.xxh3_64_intdigest(tokens, seed=choice)


def words(seed: int, length: int) -> bytes:
    """Text of ``length`` tokens: a run of one fixed sequence of words, starting where the seed says."""
    ring = _ring()
    start = seed % _WORDS * TOKEN_BYTES
    need = length * TOKEN_BYTES
    text = ring[start : start + need]
    while len(text) < need:
        text += ring[: need - len(text)]
    return text


@cache
def _ring() -> bytes:
    letters = Random(4).choices(b"abcdefghijklmnopqrstuvwxyz", k=3 * _WORDS)
    return b"".join(bytes(letters[i : i + 3]) + b" " for i in range(0, len(letters), 3))
