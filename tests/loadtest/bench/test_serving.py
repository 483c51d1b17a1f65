"""The benchmarks of a gateway on sockets count rightly."""

import pytest

from loadtest.bench.http_load import LoadReport
from loadtest.bench.serving import Lag, Window, allowed_streams, delays_s, phases, summary, verdict
from loadtest.bench.stage import Sample
from router.metric_families import LOOP_LAG
from router.metrics import Metrics


def window(requests: int = 1000, cpu_s: float = 0.5) -> Window:
    """Two seconds."""
    before = Sample(10.0, 3.0, 1.0, (1,)), LoadReport(10.0, 0, 1000, 0, 0, 0, {})
    after = Sample(12.0, 3.0 + cpu_s, 1.1, (1,)), LoadReport(12.0, 0, 1000 + requests, 0, 0, 0, {})
    return Window(*before, *after)


def test_cost_is_told_per_request_of_the_window() -> None:
    assert window().took_s == 2
    assert window().cpu_us == pytest.approx(500)
    assert window().valkey_us == pytest.approx(100)


def test_the_summary_compares_the_medians() -> None:
    def runs(*cpu_us: float) -> list[Window]:
        return [window(cpu_s=figure * 1000 / 1e6) for figure in cpu_us]

    lines = summary({1: runs(90, 100, 500), 2: runs(105, 110, 115)}).splitlines()
    assert "10000 requests per CPU-second,  100.0 us each (90.0 to 500.0)" in lines[0]
    assert lines[-1] == "A request costs +10.0% with 2 processes."
    assert len(summary({1: runs(100)}).splitlines()) == 1


def test_streams_are_bounded_by_the_open_files_that_both_sides_may_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert allowed_streams(1, 1) == 1
    assert capsys.readouterr().out == ""
    allowed = allowed_streams(10**9, 1)
    assert allowed < allowed_streams(10**9, 2) < 10**9
    assert f"{allowed:,} streams instead of 1,000,000,000" in capsys.readouterr().out


def test_a_delay_is_what_a_gap_is_longer_than_the_chunks_are_apart() -> None:
    """Chunks come every 10 ms; the second read is 5 ms late, and the third one on time again."""
    assert delays_s([1.0, 1.015, 1.02]) == pytest.approx([0.0, 0.005])


def test_the_lag_of_a_phase_is_what_was_counted_in_it() -> None:
    metrics = Metrics("1")
    metrics.distributions[LOOP_LAG].observe(0.4)
    before = Lag.of(metrics.exposition()[0].decode())
    for lag_s in [0.0004] * 90 + [0.004] * 10:
        metrics.distributions[LOOP_LAG].observe(lag_s)
    lag = Lag.of(metrics.exposition()[0].decode()).since(before)
    assert (lag.quantile_s(0.5), lag.quantile_s(0.99), lag.quantile_s(1.0)) == (0.001, 0.005, 0.005)


def test_the_table_has_a_line_for_each_phase() -> None:
    lines = phases({"alone": ([0.001, 0.003], Lag({0.002: 10, float("inf"): 10}))}).splitlines()
    assert lines[2] == "| alone | 2 | 1.0 ms | 3.0 ms | 3.0 ms | <= 2 ms | <= 2 ms | <= 2 ms |"


@pytest.mark.parametrize(("growth_mb_per_min", "flat"), [(0.0, True), (0.1, True), (3.0, False)])
def test_growth_after_the_warm_up_fails(growth_mb_per_min: float, flat: bool) -> None:
    """Half an hour that begins with five minutes of warming up, by 40 MB."""
    samples = [
        Sample(
            at_s,
            0.1 * at_s,
            0.0,
            (round(1e6 * (100 + min(at_s / 300, 1) * 40 + growth_mb_per_min * at_s / 60)),),
        )
        for at_s in range(0, 1800, 5)
    ]
    text, is_flat = verdict(samples, LoadReport(1800.0, 0, 180_000, 0, 0, 0, {}))
    assert is_flat == flat
    assert "180,000 streams in 1795 s, 0 broken, 10.0% of a core" in text
    assert f"slope  {1000 * growth_mb_per_min:+.1f} KB/min" in text
