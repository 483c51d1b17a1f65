"""A user's engine as a file: the engine built from it, and errors with their remedy."""

from pathlib import Path

import pytest

from loadtest.engine.profiles import EngineProfile
from loadtest.profile.engine_file import EngineFile, EngineFileError, build_engine, read_engine, written

LEAST = """
prefill: {tokens_per_s: 20000}
decode: {step_s: 0.02}
cache: {tokens: 500000}
"""

ALL = """
name: h200-2-ranks
dialect: vllm
attention: sliding_window
prefill: {tokens_per_s: 40000, context_doubling_tokens: 90000, prompt_s: 0.02, step_s: 0.003}
decode: {step_s: 0.015, request_s: 0.0002, context_token_s: 2e-8, tokens_per_step: 2.5}
cache:
  tokens: 800000
  block_tokens: 16
  bytes_per_token: 70000
  window_tokens: 128
  window_cache_tokens: 60000
  window_bytes_per_token: 9000
chunk_tokens: 4096
max_running: 64
ranks: 2
layers: 70
gpus: 8
interleave: prefill_first
queue_order: lpm
host: {tokens: 2000000, bytes_per_s: 4e10}
pool: {tokens: 9000000, bytes_per_s: 1e11}
hand_over: {bytes_per_s: 5e10, latency_s: 0.001}
prices: {worker: 30, host_gib: 0.01, pool_gib: 0.02}
notes: [by hand]
"""


def read(tmp_path: Path, text: str) -> EngineProfile:
    (tmp_path / "engine.yaml").write_text(text)
    return read_engine(tmp_path / "engine.yaml").profile


def test_three_figures_are_enough(tmp_path: Path) -> None:
    profile = read(tmp_path, LEAST)
    assert profile.prefill.b_s == pytest.approx(1 / 20_000)
    assert profile.decode.base_s == 0.02
    assert (profile.rules.full_tokens, profile.dp_ranks, profile.rules.attention) == (500_000, 1, "full")


def test_every_figure_reaches_the_engine(tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text(ALL)
    own = read_engine(tmp_path / "engine.yaml")
    profile = own.profile
    assert (profile.name, profile.rules.match_rule, profile.rules.attention) == (
        "h200-2-ranks",
        "vllm",
        "sliding_window",
    )
    assert (profile.prefill.a_s, profile.prefill.c0_tokens, profile.prefill.step_s) == (0.02, 90_000, 0.003)
    assert (profile.decode.request_s, profile.decode.kv_token_s, profile.decode.mtp_speedup) == (
        0.0002,
        2e-8,
        2.5,
    )
    rules = profile.rules
    assert (rules.full_tokens, rules.swa_tokens, rules.window_tokens, rules.block_tokens) == (
        400_000,
        30_000,
        128,
        16,
    )
    assert (profile.chunk_tokens, profile.max_running, profile.dp_ranks) == (4096, 64, 2)
    assert (profile.interleave, profile.queue_order, profile.gpus) == ("prefill_first", "lpm", 8)
    assert profile.host.bytes_per_s == 8 * 4e10 / 2
    assert (profile.pool_bytes_per_s, profile.handover.latency_s) == (1e11, 0.001)
    assert profile.shape.layers == 70
    assert (own.given.host.tokens, own.given.pool.tokens, own.given.prices.worker) == (
        2_000_000,
        9_000_000,
        30,
    )


@pytest.mark.parametrize("text", [LEAST, ALL])
def test_a_written_profile_is_read_as_it_was(tmp_path: Path, text: str) -> None:
    (tmp_path / "engine.yaml").write_text(text)
    given = read_engine(tmp_path / "engine.yaml").given
    (tmp_path / "again.yaml").write_text(written(given, "Made by hand.\nTwice."))
    assert read_engine(tmp_path / "again.yaml").given == given


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LEAST.replace("20000", "-3"), r"line 2: prefill\.tokens_per_s: .*greater than 0; give speed at an"),
        (LEAST.replace("20000", ".nan"), r"prefill\.tokens_per_s: .*finite"),
        (LEAST.replace("20000", "fast"), r"prefill\.tokens_per_s: .*number"),
        (LEAST.replace("tokens_per_s", "tokens"), r"prefill\.tokens: there is no such name; names here"),
        (LEAST.replace("decode: {step_s: 0.02}", ""), r"decode: is missing; give pace of decode"),
        (LEAST + "rank: 2\n", r"line 5: rank: there is no such name; .*ranks"),
        (LEAST + "attention: linear\n", r"attention linear needs cache\.states"),
        (LEAST.replace("500000}", "500000, window_tokens: 9}"), r"attention full takes no cache"),
        (LEAST.replace("500000", "64"), r"cache\.tokens: 64 is less than two blocks of 64"),
        (LEAST + "ranks: 8\nmax_running: 4\n", r"max_running: 4 is less than one for each of 8 ranks"),
        (LEAST + "pool: {tokens: 9}\n", r"pool\.tokens needs host\.tokens"),
        (LEAST + "name: '<script>'\n", r"name: "),
        ("", "is no mapping; write at least prefill"),
        ("- a\n- b\n", "is no mapping"),
        ("prefill: [", "is not YAML"),
        ("a: &a [*a]\n", "there is no such name|is not YAML"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_what_to_write(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(EngineFileError, match=told):
        read(tmp_path, text)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(EngineFileError) as refused:
        read(tmp_path, "prefill: {tokens_per_s: 0}\ndecode: {step_s: 0}\nranks: 0\n")
    assert len(str(refused.value).splitlines()) == 4


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineFileError, match="cannot be read"):
        read_engine(tmp_path / "none.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(EngineFileError, match="larger than 1 MiB"):
        read_engine(tmp_path / "large.yaml")


def test_numbers_that_contradict_each_other_are_refused() -> None:
    given = EngineFile.model_validate(
        {"prefill": {"tokens_per_s": 1}, "decode": {"step_s": 1}, "cache": {"tokens": 900}, "ranks": 1000}
    )
    with pytest.raises(EngineFileError, match="ranks"):
        build_engine(given)
