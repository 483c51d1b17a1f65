"""A client beside the gateway and the engines."""

from dataclasses import replace

import pytest
from rich.console import Console

from loadtest.bench.clients.client import Report
from loadtest.bench.clients.comparison import Comparison, table
from loadtest.bench.clients.engine_view import EngineTokens
from loadtest.bench.clients.gateway_view import Counted

ALIKE = Comparison(
    "aiperf",
    Report(10, 0, 0.2, 0.19, 0.3, prompt_tokens=900, cached_tokens=320, output_tokens=80),
    Counted(10, 0, 0, 0.195, 0.188, 0.296, prompt_tokens=900, cached_tokens=320, output_tokens=80),
    EngineTokens(900, 320),
)


def test_who_says_the_same_agrees() -> None:
    assert ALIKE.disagreements == ALIKE.engine_disagreements == []
    assert ALIKE.ttft_agrees


@pytest.mark.parametrize(
    ("theirs_s", "ours_s", "agrees"),
    [
        (0.0149, 0.010, True),
        (0.0151, 0.010, False),
        (1.049, 1.0, True),
        (1.051, 1.0, False),
        (0.949, 1.0, False),
        (None, 1.0, False),
        (1.0, None, False),
    ],
)
def test_times_agree_within_five_milliseconds_or_five_percent(
    theirs_s: float | None, ours_s: float | None, agrees: bool
) -> None:
    compared = replace(
        ALIKE, report=replace(ALIKE.report, ttft_s=theirs_s), counted=replace(ALIKE.counted, ttft_s=ours_s)
    )
    assert compared.ttft_agrees is agrees


def test_every_difference_is_named() -> None:
    compared = replace(ALIKE, report=replace(ALIKE.report, completed=9, failed=1, cached_tokens=288))
    assert compared.disagreements == [
        "completed: the client says 9, the gateway 10",
        "cached tokens: the client says 288, the gateway 320",
        "failed: 1 of the client's, 0 of the gateway's",
    ]
    compared = replace(ALIKE, engines=EngineTokens(932, 320))
    assert compared.disagreements == []
    assert compared.engine_disagreements == ["prompt tokens: the engines say 932, the gateway 900"]


def test_what_a_client_did_not_wait_for_only_the_gateway_knows() -> None:
    eager = replace(ALIKE, report=replace(ALIKE.report, completed=9, prompt_tokens=810, unfinished=1))
    assert eager.disagreements == []
    assert replace(eager, report=replace(eager.report, completed=8)).disagreements == [
        "completed: the client says 8, the gateway 10"
    ]


def test_what_a_client_does_not_say_cannot_differ() -> None:
    silent = replace(ALIKE, report=Report(10, 0, 0.2))
    assert silent.disagreements == []


def test_engines_may_count_more_than_was_told_if_a_client_left() -> None:
    left = replace(ALIKE, counted=replace(ALIKE.counted, left=1), engines=EngineTokens(1000, 352))
    assert left.disagreements == left.engine_disagreements == []


def test_the_table_shows_both_and_the_difference() -> None:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as shown:
        console.print(table([ALIKE, replace(ALIKE, client="locust", report=Report(10, 0, None))]))
    text = shown.get()
    assert "200.0 / 195.0 (+5.0)" in text
    assert "yes" in text
    assert "- / 195 ms" in text
