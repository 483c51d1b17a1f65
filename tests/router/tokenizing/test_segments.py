"""Segments one by one give the ids of the whole text, for any tokenizer's rules at the edges of a text."""

from array import array

import pytest
from fakes.tokenizers import SPECIAL, tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.normalizers import NFC, Lowercase, Prepend, Sequence
from tokenizers.processors import TemplateProcessing

from router.tokenizing.lru import Remembered
from router.tokenizing.refusal import NotTokenized
from router.tokenizing.segments import SegmentTokenizer, boundaries, split


def ids(packed: bytes) -> list[int]:
    return list(array("I", packed))


def segmented(made: Tokenizer, *, remembered: Remembered[bytes, bytes] | None = None) -> SegmentTokenizer:
    cut_at = [token.content for token in made.get_added_tokens_decoder().values()]
    return SegmentTokenizer(made, cut_at, remembered or Remembered(1 << 20))


def special(text: str, **flags: bool) -> AddedToken:
    return AddedToken(text, special=True, normalized=False, **flags)


def _normalized() -> Tokenizer:
    made = tokenizer(special=(*SPECIAL, AddedToken("Shout", normalized=True), special("[mid]")))
    made.normalizer = Sequence([NFC(), Lowercase()])
    return made


def _prepended() -> Tokenizer:
    made = tokenizer(like_sentencepiece=True)
    made.normalizer = Prepend("▁")
    return made


KINDS = {
    "bytes": tokenizer(),
    "sentencepiece": tokenizer(like_sentencepiece=True),
    "normalized": _normalized(),
    "prepended": _prepended(),
    "greedy": tokenizer(
        special=(
            *map(special, SPECIAL),
            special("<mask>", lstrip=True),
            special("<fill>", rstrip=True),
            special("word", single_word=True),
            special("<|im_start|>user"),
            special("x<|im"),
            special("<|"),
        )
    ),
}
pieces = st.sampled_from(
    [
        *SPECIAL,
        *("<mask>", "<fill>", "word", "Shout", "shout", "[mid]", "user", "x", "<|", "im_start|>", "_"),
        *("x<|im_start|>", "the lazy dog jumps over the brown fox"),
        *(" ", "  ", "\n", "hello", "the quick", "é", "e\u0301", "日本", "🙂", "A", "0", "▁"),
    ]
)


@pytest.mark.parametrize("kind", KINDS)
@given(
    texts=st.lists(st.lists(pieces, max_size=30).map("".join), min_size=1, max_size=3), added=st.booleans()
)
def test_segments_give_the_ids_of_the_whole(kind: str, texts: list[str], added: bool) -> None:
    made = KINDS[kind]
    found = segmented(made)
    for text in (*texts, *texts):  # the second time all segments are remembered
        assert ids(found.packed(text, add_special_tokens=added)) == (
            made.encode(text, add_special_tokens=added).ids
        )


@given(st.lists(pieces, max_size=30).map("".join))
def test_segments_follow_each_other_as_the_text_does(text: str) -> None:
    found = split(text, SPECIAL)
    assert "".join(found) == text
    assert all(segment.startswith(SPECIAL) for segment in found[1:])


def test_it_is_cut_where_nothing_can_disturb_a_token() -> None:
    """``<|im_start|>user`` and ``x<|im`` may be matched in place of ``<|im_start|>``."""
    assert boundaries(KINDS["bytes"], SPECIAL) == [*SPECIAL]
    assert boundaries(KINDS["greedy"], [*SPECIAL, "<mask>", "<fill>", "word", "<|", "none"]) == [
        "<|endoftext|>",
        "<|bos|>",
    ]
    disturbed = tokenizer(
        special=(special("<a>"), special("x<a"), special("<b>"), special("y<b>"), special("aba"))
    )
    assert boundaries(disturbed, ["<a>", "<b>", "aba"]) == []


def test_tokens_that_are_split_like_text_are_no_boundaries() -> None:
    made = tokenizer()
    made.encode_special_tokens = True
    assert segmented(made).boundaries == []
    assert ids(segmented(made).packed("<|bos|>", add_special_tokens=False)) == made.encode("<|bos|>").ids


def test_only_what_is_new_is_tokenized() -> None:
    remembered = Remembered[bytes, bytes](1 << 20)
    found = segmented(KINDS["bytes"], remembered=remembered)
    turns = [f"<|im_start|>user\nquestion number {number} of the fox<|im_end|>\n" for number in range(20)]
    for count in range(1, 21):
        found.packed("".join(turns[:count]), add_special_tokens=False)
    assert len(remembered) <= 2 * 20 + 20  # the last piece of a text goes with what follows it later


def test_a_frame_is_put_around_what_is_remembered() -> None:
    made = tokenizer()
    made.post_processor = TemplateProcessing(
        single="<|bos|> $A <|im_end|>", special_tokens=[("<|bos|>", 3), ("<|im_end|>", 2)]
    )
    found = segmented(made)
    assert ids(found.packed("hello", add_special_tokens=True)) == [
        3,
        *ids(found.packed("hello", add_special_tokens=False)),
        2,
    ]
    assert ids(found.packed("", add_special_tokens=True)) == [3, 2]


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(NotTokenized):
        segmented(tokenizer()).packed("a\ud83d", add_special_tokens=False)
