"""Percentiles, ratios and the table."""

import io

import pytest
from rich.console import Console

from loadtest.client import Outcome
from loadtest.replay import Sample
from loadtest.report import Tally, percentile, report_table, summarize


def sample(
    ttft_s: float = 0.1, *, prompt: int = 100, cached: int = 50, ideal: int = 80, error: str | None = None
) -> Sample:
    outcome = Outcome(
        ttft_s=ttft_s,
        tpot_s=0.02,
        itl_s_max=0.03,
        total_s=1.0,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=10,
        status=200,
        error=error,
        worker="w",
        text="",
        tool_calls=(),
    )
    return Sample(outcome, ideal)


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(1, 0.5, 1), (2, 0.5, 1), (10, 0.9, 9), (10, 0.99, 10), (100, 0.99, 99), (101, 0.99, 100), (4, 1.0, 4)],
)
def test_a_percentile_is_the_nearest_rank(count: int, share: float, expected: int) -> None:
    """Rank ceil(share * count), counted from one, of the values 1, 2, ... count."""
    assert percentile(list(range(1, count + 1)), share) == expected


def test_no_values_have_no_percentile() -> None:
    assert percentile([], 0.5) is None


def test_ratios_are_of_tokens_and_not_of_requests() -> None:
    """0 of 100 and 900 of 900 tokens are 90 %, not the mean of 0 % and 100 %."""
    tally = Tally()
    tally.add(sample(prompt=100, cached=0, ideal=100))
    tally.add(sample(prompt=900, cached=900, ideal=900))

    report = summarize("p", tally, unsent=0, duration_s=2.0)

    assert report.hit_ratio == 0.9
    assert report.ideal_hit_ratio == 1.0
    assert report.ideal_share == 0.9


def test_a_failure_counts_as_failed_and_nowhere_else() -> None:
    tally = Tally()
    tally.add(sample(0.1))
    tally.add(sample(9.0, error="status 503: no worker"))

    report = summarize("p", tally, unsent=3, duration_s=1.0)

    assert (report.completed, report.failed) == (1, 4)
    assert report.ttft_p99_s == 0.1
    assert report.prompt_tokens == 100
    assert report.first_error == "status 503: no worker"


def test_times_are_told_in_the_time_of_the_trace() -> None:
    """A trace replayed ten times faster: 0.1 s measured are 1 s of the trace."""
    tally = Tally()
    tally.add(sample(0.1))

    report = summarize("p", tally, unsent=0, duration_s=2.0, time_scale=10.0)

    assert report.ttft_p50_s == 1.0
    assert report.duration_s == 20.0


def test_the_table_has_one_row_per_policy_and_dashes_for_what_was_not_measured() -> None:
    tally = Tally()
    tally.add(sample(12.345))
    reports = [
        summarize("consistent_hash", tally, unsent=0, duration_s=1.0, prefill_utilisation=1.0),
        summarize("round_robin", Tally(), unsent=2, duration_s=1.0),
    ]
    console = Console(file=io.StringIO(), width=80)

    console.print(report_table(reports, title="Title", caption="Caption"))

    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    rows = [" ".join(line.replace("│", " ").split()) for line in text.splitlines() if "_" in line]
    assert "Title" in text
    assert "Caption" in text
    assert rows == [
        "consistent_hash 50.0 % 62.5 % 12,345 ms 12,345 ms 12,345 ms 100.0 % 1 / 0",
        "round_robin 0.0 % 100.0 % - - - - 0 / 2",
    ]


def test_a_report_is_plain_values_as_json() -> None:
    report = summarize("p", Tally(), unsent=0, duration_s=1.0).as_json()

    assert report["policy"] == "p"
    assert report["ttft_p50_s"] is None
