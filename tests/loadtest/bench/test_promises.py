"""The engines that the table of promises compares."""

from loadtest.bench.promises import engine_of
from loadtest.engine.profiles import PROFILES


def test_suffixes_say_ranks_and_rule() -> None:
    usual = PROFILES["mimo-v2.5-pro"]
    one = engine_of("mimo-v2.5-pro/1")
    vllm = engine_of("mimo-v2.5-pro/vllm/1")

    assert engine_of("mimo-v2.5-pro") == usual
    assert (one.dp_ranks, one.rules.full_tokens) == (1, usual.dp_ranks * usual.rules.full_tokens)
    assert (one.rules.match_rule, vllm.rules.match_rule) == ("sglang", "vllm")
    assert vllm.dp_ranks == 1
