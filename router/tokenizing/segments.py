r"""Token ids of long texts, of which only the new part is tokenized.

    <|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n          a rendered conversation
    └─ segment ───────────┘└ segment ┘└─ segment ──────────────          each begins with a special token

A tokenizer cuts its special tokens out of a text before it does anything else, and tokenizes the text between
them piece by piece (``AddedVocabulary::extract_and_normalize`` of the ``tokenizers`` library). So ids of
segments follow each other as those of the whole do, and a segment that was seen before is looked up: a
conversation of 100,000 tokens costs as much as its last turn.

Only tokens at which that holds are cut at, found by `boundaries`:

* it is matched in the text as it is (not normalized), anywhere (no ``single_word``), and takes no blanks
  around it (no ``lstrip``, ``rstrip``);
* no other added token contains it or ends within it, so that it is matched at any place;
* it begins with no letter and has no blanks at its ends, so that its neighbours do not tell it from an end.

A segment keeps the token that it begins with, so a tokenizer's rule for the start of a text (Metaspace
with ``prepend_scheme: first``) applies only in the first one.
"""

import secrets
from array import array
from collections.abc import Iterable, Sequence

import xxhash
from tokenizers import AddedToken, Tokenizer

from router.tokenizing.lru import Remembered
from router.tokenizing.refusal import Cause, NotTokenized

SEGMENT_CHARACTERS_MIN = 32
"""A shorter segment is tokenized with the one before it: a lookup costs more."""

BOUNDARIES_MAX = 8
"""Most tokens that are cut at: each is looked for in all of the text."""


class SegmentTokenizer:
    """Tokenizes with one tokenizer that no longer changes; several threads may use it.

    Usable special tokens of ``cut_at`` become boundaries. ``remembered`` holds packed ids by the hash of a
    text.
    """

    def __init__(
        self, tokenizer: Tokenizer, cut_at: Iterable[str], remembered: Remembered[bytes, bytes]
    ) -> None:
        self._tokenizer = tokenizer
        self._remembered = remembered
        # A secret seed, so that no client can write a text with another's hash; other tokenizers'
        # texts are other ones.
        self._seed = secrets.randbits(64)
        self.boundaries = boundaries(tokenizer, cut_at)[:BOUNDARIES_MAX]
        self._opening, self._closing, self._frames = _frame(tokenizer)

    def packed(self, text: str, *, add_special_tokens: bool) -> bytes:
        """Return the ids of a text, as 32-bit integers, opened and closed if ``add_special_tokens``.

        Raise NotTokenized if it is no text (a lone surrogate), or the tokenizer refuses it.
        """
        try:
            if add_special_tokens and not self._frames:
                return _packed(self._tokenizer.encode(text).ids)
            pieces = [self._looked_up(segment) for segment in split(text, self.boundaries)]
        except NotTokenized:
            raise
        except Exception as error:
            raise NotTokenized(Cause.FAILED, f"the tokenizer refuses it ({type(error).__name__})") from error
        if add_special_tokens:
            pieces = [self._opening, *pieces, self._closing]
        return b"".join(pieces)

    def _looked_up(self, segment: str) -> bytes:
        key = xxhash.xxh3_128_digest(segment.encode(), self._seed)
        packed = self._remembered.get(key)
        if packed is None:
            # A batch of one is tokenized without keeping where each token was, at half the price.
            packed = _packed(self._tokenizer.encode_batch_fast([segment], add_special_tokens=False)[0].ids)
            self._remembered.put(key, packed, len(packed))
        return packed


def split(text: str, at: Sequence[str]) -> list[str]:
    """Cut a text before each of some tokens, but not into crumbs; the segments together are the text."""
    pieces = [text]
    for token in at:
        if token not in text:
            continue
        finer: list[str] = []
        for piece in pieces:
            first, *rest = piece.split(token)
            finer.append(first)
            finer.extend(token + tail for tail in rest)
        pieces = finer
    if len(pieces) == 1:
        return pieces
    segments: list[str] = []
    for piece in pieces:
        if segments and (len(segments[-1]) < SEGMENT_CHARACTERS_MIN or not piece):
            segments[-1] += piece
        else:
            segments.append(piece)
    return segments


def boundaries(tokenizer: Tokenizer, wanted: Iterable[str]) -> list[str]:
    """Those of some texts that are special tokens at which a text may be cut."""
    if tokenizer.encode_special_tokens:
        return []
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    return [
        text
        for text in dict.fromkeys(wanted)
        if text in added and _is_plain(added[text]) and not any(_disturbs(other, text) for other in added)
    ]


def _is_plain(token: AddedToken) -> bool:
    text = token.content
    alone = bool(text) and text == text.strip() and not (text[0].isalnum() or text[0] == "_")
    return alone and not (token.normalized or token.single_word or token.lstrip or token.rstrip)


def _disturbs(other: str, token: str) -> bool:
    """Return True if another token, or a second one of the same, may match in place of a token."""
    if other != token and token in other:
        return True
    shorter = min(len(other), len(token))
    # True if it begins before the token and ends within it. One that begins within it comes too late: the
    # leftmost is matched.
    return any(
        other.endswith(token[:length]) for length in range(1, shorter if other != token else len(token))
    )


def _frame(tokenizer: Tokenizer) -> tuple[bytes, bytes, bool]:
    """Return the ids that a tokenizer puts before and behind any text, and True if it does no more."""
    found: set[tuple[bytes, bytes]] = set()
    for probe in ("a", "b c", "Zz 1"):
        whole = tokenizer.encode(probe).ids
        alone = tokenizer.encode(probe, add_special_tokens=False).ids
        at = next(
            (at for at in range(len(whole) - len(alone) + 1) if whole[at : at + len(alone)] == alone), None
        )
        if at is None or not alone:
            return b"", b"", False
        found.add((_packed(whole[:at]), _packed(whole[at + len(alone) :])))
    if len(found) != 1:
        return b"", b"", False
    return *found.pop(), True


def _packed(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()
