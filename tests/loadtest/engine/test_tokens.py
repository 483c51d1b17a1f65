from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine import tokens


def test_text_and_the_ids_of_that_text_are_the_same_tokens() -> None:
    packed = tokens.pack_text("four letters, é!")

    assert tokens.pack_ids(tokens.unpack_ids(packed)) == packed


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_text_survives_tokens(text: str) -> None:
    packed = tokens.pack_text(text)

    assert tokens.unpack_text(packed) == text
    assert tokens.count(packed) == -(-len(text.encode()) // 4)


@pytest.mark.parametrize("ids", [[-1], [1 << 32], ["a"], [None], [1.5]])
def test_what_is_no_token_id_is_refused(ids: list[Any]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        tokens.pack_ids(ids)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 40_000))
def test_words_have_exactly_the_length_asked_for_and_need_no_escapes(seed: int, length: int) -> None:
    text = tokens.words(seed, length)

    assert tokens.count(text) == length == text.count(b" ")
    assert text.replace(b" ", b"").isalpha() or not length


def test_every_choice_of_a_prompt_has_a_seed_of_its_own() -> None:
    prompt = tokens.pack_text("hello")

    assert tokens.seed_of(prompt, 0) == tokens.seed_of(prompt, 0)
    assert len({tokens.seed_of(prompt, choice) for choice in range(100)}) == 100
