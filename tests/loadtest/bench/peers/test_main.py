"""A run from its options to its report, with a kit that measures nothing."""

from pathlib import Path

import pytest
from fakes.bench_kit import SOUND, bench_kit
from fakes.measured import ONE, RUN

from loadtest.bench.peers.__main__ import main, visits
from loadtest.bench.peers.field import WORKLOADS
from loadtest.bench.peers.kit import Kit
from loadtest.bench.peers.results import append, begin, read

W1, W6, W7 = (next(one for one in WORKLOADS if one.key == key) for key in ("W1", "W6", "W7"))


def test_rounds_begin_with_another_peer_each_and_memory_is_measured_in_a_process_of_its_own() -> None:
    assert visits(["a", "b"], [W1, W7], 2) == [
        (0, "a", ["W1"]),
        (0, "a", ["W7fill", "W7"]),
        (0, "b", ["W1"]),
        (0, "b", ["W7fill", "W7"]),
        (1, "b", ["W1"]),
        (1, "b", ["W7fill", "W7"]),
        (1, "a", ["W1"]),
        (1, "a", ["W7fill", "W7"]),
    ]


def test_what_latency_is_added_to_is_measured_in_every_round() -> None:
    assert visits(["a"], [W1, W6], 2) == [
        (0, "a", ["W1", "W6"]),
        (0, "direct", ["W6"]),
        (1, "a", ["W1", "W6"]),
        (1, "direct", ["W6"]),
    ]


def test_without_the_kit_a_run_is_skipped_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    assert main(["--out", str(out)], Kit(tmp_path / "none", tmp_path)) == 0
    assert "skipped: the router benchmark kit is not there" in capsys.readouterr().out
    assert not out.exists()


def test_a_run_writes_results_report_and_chart(tmp_path: Path) -> None:
    """Twice: nine workloads, the fill of W7 among them, for each of two routers, and W6 without any."""
    kit = bench_kit(tmp_path)

    assert main(["--peers", "smg-rr", "--reps", "2", "--out", str(tmp_path)], kit) == 0

    assert len((tmp_path / "peers.jsonl").read_text().splitlines()) == 1 + 2 * (2 * 9 + 1)
    assert "| W6 | P50 below 0.60 ms |" in (tmp_path / "peers.md").read_text()
    assert (tmp_path / "peers.png").stat().st_size > 0


def test_what_is_missing_is_installed_first(tmp_path: Path) -> None:
    kit = bench_kit(tmp_path)
    (kit.home / "lg").unlink()

    assert main(["--peers", "cacheway", "--workloads", "W1", "--reps", "1", "--out", str(tmp_path)], kit) == 0
    assert (kit.home / "installed").read_text() == "tools\n"


def test_a_run_goes_on_without_a_router_that_does_not_come_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = bench_kit(tmp_path, f"if options.peers == 'smg-ca': sys.exit(print('no smg today'))\n{SOUND}")
    options = ["--peers", "smg-ca", "smg-rr", "--workloads", "W1", "--reps", "1", "--out", str(tmp_path)]

    assert main(options, kit) == 0

    assert "no smg today" in capsys.readouterr().out
    results = read(tmp_path / "peers.jsonl")
    assert results.took_part("smg-rr", "W1")
    assert not results.took_part("smg-ca", "W1")


def test_without_cacheway_there_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = bench_kit(tmp_path, "print('cacheway: did not get ready')")

    assert main(["--peers", "smg-ca", "--reps", "1", "--out", str(tmp_path)], kit) == 1
    assert "cacheway: did not get ready" in capsys.readouterr().err
    assert not (tmp_path / "peers.md").exists()


def test_a_report_is_made_again_from_the_results_of_a_former_run(tmp_path: Path) -> None:
    results = tmp_path / "former.jsonl"
    begin(results, RUN)
    append(results, ONE)

    assert main(["--report-only", str(results), "--out", str(tmp_path / "again")]) == 0
    assert "| **cacheway** | 50.0 | 1.00 |" in (tmp_path / "again" / "peers.md").read_text()


def test_results_that_cannot_be_read_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--report-only", str(tmp_path / "none.jsonl"), "--out", str(tmp_path)]) == 1
    assert "none.jsonl" in capsys.readouterr().err
