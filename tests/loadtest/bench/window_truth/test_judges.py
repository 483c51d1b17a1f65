"""Judges, on histories so short that the engine's duty is plain."""

import pytest

from loadtest.bench.window_truth.judges import History, Predicted, Simulated, attention_of, rules_of

FIRST = tuple(range(1000, 1300))
FORK = (*FIRST[:150], *range(500, 650))
LATER = (*FIRST[:150], *range(700, 850))
ANSWER = tuple(range(200, 250))


def judges(kind: str) -> tuple[History, Simulated]:
    return History(attention_of(kind)), Simulated(rules_of(kind, kv_blocks=4096, step_tokens=256))


@pytest.mark.parametrize("kind", ["gemma3", "mimo_v2"])
def test_who_leaves_a_prompt_at_its_half_finds_no_window_and_makes_one(kind: str) -> None:
    """150 of 300 tokens are shared: the match promises four blocks of 32, the engine reuses none.

    The next one to leave there does (real engines: docs/window-truth.md).
    """
    for judge in judges(kind):
        judge.answered(FIRST, ANSWER)
        assert judge.predict(FIRST) == Predicted(288, 288)
        assert judge.predict(FORK) == Predicted(128, 0)
        judge.answered(FORK, ANSWER)
        assert judge.predict(LATER) == Predicted(128, 128)


def test_a_model_with_full_attention_goes_on_from_every_block() -> None:
    for judge in judges("qwen3"):
        judge.answered(FIRST, ANSWER)
        assert judge.predict(FORK) == Predicted(128, 128)


def test_only_the_engines_model_knows_what_was_decoded() -> None:
    """300 tokens and 49 of the answer are computed, ten blocks; requests alone show nine."""
    history, simulated = judges("qwen3")
    for judge in (history, simulated):
        judge.answered(FIRST, ANSWER)

    assert history.predict((*FIRST, *ANSWER)) == Predicted(288, 288)
    assert simulated.predict((*FIRST, *ANSWER)) == Predicted(320, 320)


@pytest.mark.parametrize("kind", ["gemma3", "mimo_v2"])
def test_a_window_stays_before_the_last_token_of_a_prompt_of_whole_blocks(kind: str) -> None:
    for judge in judges(kind):
        judge.answered(FIRST[:128], ANSWER)
        assert judge.predict(FIRST[:128]).reusable == 96
        assert judge.predict(FIRST).reusable == 96


def test_a_cache_has_all_blocks_but_the_null_block() -> None:
    dense, hybrid = (rules_of(kind, kv_blocks=500, step_tokens=256) for kind in ("qwen3", "gemma3"))

    assert dense.full_tokens == 499 * 32
    assert hybrid.full_tokens + 5 * hybrid.swa_tokens == 499 * 32
