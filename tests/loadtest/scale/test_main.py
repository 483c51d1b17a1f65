"""Tests of `python -m loadtest.scale`."""

from pathlib import Path

import pytest

from loadtest.scale import __main__ as program
from loadtest.scale.__main__ import applied_us, main


def test_it_prints_all_tables_and_skips_a_trace_that_is_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "WINDOWS", {"agents": (2.0, 6.0), "conversation": (2.0, 6.0)})
    monkeypatch.setattr(program, "DIES_S", 4.0)
    monkeypatch.setattr(program, "AFTER_S", 2.0)
    monkeypatch.setattr(program, "DEATHS", 1)

    assert main(["--replicas", "4", "200", "--trace", str(tmp_path / "absent")]) == 0

    text = capsys.readouterr().out
    assert "| agents | 4 | one log | all |" in text
    assert "| agents | 200 | 2 owners | holders and 8 |" in text
    assert "conversation" not in text
    assert "Death of the busiest of 4 replicas" in text
    assert "| 200 | groups |" in text


def test_applying_a_vector_takes_microseconds() -> None:
    assert 0.0 < applied_us(15) < 1000.0
