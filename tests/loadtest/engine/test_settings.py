from typing import Any

import pytest

from loadtest.engine.settings import EngineSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block_tokens": 0}, "block_tokens must be at least 1"),
        ({"cache_tokens": 8, "block_tokens": 16}, "cache_tokens must be at least 16"),
        ({"speed": 0}, "speed must be above 0"),
        ({"prefill_tokens_per_s": float("nan")}, "prefill_tokens_per_s must be above 0"),
        ({"models": ()}, "models must name"),
    ],
)
def test_what_cannot_be_modelled_is_refused_with_a_sentence(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineSettings(**wrong)


def test_the_longest_context_fits_both_the_model_and_the_cache() -> None:
    assert EngineSettings(cache_tokens=1000, max_model_len=4096).context_tokens_max == 1000
    assert EngineSettings(cache_tokens=9000, max_model_len=4096).context_tokens_max == 4096
