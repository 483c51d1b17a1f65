"""Medians, differences, and the effect of a failure on both."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fakes.measured import ONE, RUN

from loadtest.bench.peers.field import DIRECT, WORKLOADS
from loadtest.bench.peers.results import Repetition, Results, Spread, append, begin, read

W1, W6, W7 = (next(one for one in WORKLOADS if one.key == key) for key in ("W1", "W6", "W7"))


def rounds(*cpu_us: float, peer: str = "cacheway") -> list[Repetition]:
    return [
        replace(ONE, peer=peer, round_number=number, cpu_us_per_request=value)
        for number, value in enumerate(cpu_us)
    ]


def test_a_figure_is_the_median_with_least_and_most() -> None:
    assert Results(RUN, rounds(50, 90, 40)).figure("cacheway", W1) == Spread(50, 40, 90)


def test_what_was_not_measured_has_no_figure() -> None:
    results = Results(RUN, rounds(50))

    assert results.figure("nginx", W1) is None
    assert not results.took_part("nginx", "W1")
    assert not results.measured("W6")


def test_a_repetition_with_a_failure_is_counted_and_gives_no_figure() -> None:
    """Refusing is cheap: the 1 us must not pull the median down."""
    broken = replace(ONE, round_number=2, failed=3, cpu_us_per_request=1.0)
    results = Results(RUN, [*rounds(50, 60), broken])

    assert results.figure("cacheway", W1) == Spread(55, 50, 60)
    assert results.failed("cacheway", "W1") == 3


def test_a_peer_that_only_failed_took_part_without_a_figure() -> None:
    results = Results(RUN, [replace(ONE, failed=1)])

    assert results.took_part("cacheway", "W1")
    assert not results.measured("W1")


def test_added_latency_is_a_difference_within_a_round() -> None:
    """1 and 3 ms more than in the same round; the third round has nothing to compare with."""
    ours = [
        replace(ONE, workload="W6", round_number=number, p50_ms=value)
        for number, value in enumerate((2.0, 8.0, 99.0))
    ]
    direct = [
        replace(ONE, peer=DIRECT, workload="W6", round_number=number, p50_ms=value)
        for number, value in enumerate((1.0, 5.0))
    ]

    assert Results(RUN, [*ours, *direct]).figure("cacheway", W6) == Spread(2.0, 1.0, 3.0)


def test_memory_is_that_of_the_moment_after_the_fill() -> None:
    filled = replace(ONE, workload="W7fill", rss_mib=70.0)
    later = replace(ONE, workload="W7", rss_mib=10.0)

    assert Results(RUN, [filled, later]).figure("cacheway", W7) == Spread(70, 70, 70)


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "peers.jsonl"
    begin(path, RUN)
    for repetition in rounds(50, 60, peer="nginx"):
        append(path, repetition)

    results = read(path)

    assert results.run == RUN
    assert results.figure("nginx", W1) == Spread(55, 50, 60)


def test_a_run_that_begins_again_forgets_the_former(tmp_path: Path) -> None:
    path = tmp_path / "peers.jsonl"
    for _ in range(2):
        begin(path, RUN)
        append(path, ONE)

    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("content", ["", "nonsense\n", '{"peer": "nginx"}\n'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "peers.jsonl"
    path.write_text(content)

    with pytest.raises(msgspec.DecodeError):
        read(path)
