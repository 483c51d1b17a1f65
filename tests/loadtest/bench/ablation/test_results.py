"""The figures of a run are summed up from its answers, and kept in a file."""

from pathlib import Path

from fakes.ablated import outcome, run

from loadtest.bench.ablation.results import Results, read, summed, write


def test_expected_and_reused_tokens_are_compared_request_by_request() -> None:
    """Ten tokens too few, 32 too many (a block, which rounding explains) and 100 too many."""
    told = [
        outcome(cached=110, predicted=100),
        outcome(cached=0, predicted=32),
        outcome(cached=0, predicted=100),
    ]
    made = summed(
        told,
        model="qwen3",
        arm="history",
        round_number=2,
        ideal_ratio=0.5,
        engine_hit_tokens=110,
        block_tokens=32,
        gateway_cpu_s=0.006,
        duration_s=3.04,
    )

    assert made.error_tokens == round(142 / 3, 1)
    assert made.promised_tokens == 44.0
    assert made.promised_ratio == round(1 / 3, 4)
    assert made.gateway_cpu_ms == 2.0
    assert made.hit_ratio == 110 / 3000
    assert (made.requests, made.predicted_tokens, made.duration_s) == (3, 232, 3.0)


def test_times_are_of_all_requests() -> None:
    times_s = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.9]
    made = summed(
        [outcome(ttft_s=time_s) for time_s in times_s],
        model="qwen3",
        arm="history",
        round_number=0,
        ideal_ratio=0.5,
        engine_hit_tokens=0,
        block_tokens=32,
        gateway_cpu_s=0.0,
        duration_s=1.0,
    )

    assert (made.ttft_mean_s, made.ttft_p50_s, made.ttft_p90_s) == (0.64, 0.5, 0.9)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    assert read(path).runs == []

    kept = Results({"vllm": "1"}, [run(), run(arm="events")])
    write(path, kept)
    assert read(path) == kept
    assert path.read_text().count("\n") == 7
