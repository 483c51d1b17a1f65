"""The row of a run. A run needs the C tools of the kit, which this machine may not have."""

import pytest

from loadtest.bench import fast_streams
from loadtest.bench.fast_streams import HEADS, Pace


def test_a_row_has_a_cell_for_every_head() -> None:
    row = Pace(2000, 2, 61_234.5, 100_000.0, 21.04, 1.3, 0.31, 0.29, (12.34, 1234.5)).row()
    assert len(row) == len(HEADS)
    assert row == ["2,000", "2", "61,234", "100,000", "21.0", "1.30", "0.31", "0.29", "12.3 / 1,234"]


def test_without_the_tools_it_says_where_they_are_missed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(fast_streams, "HOME", tmp_path)
    monkeypatch.setattr("sys.argv", ["fast_streams"])
    assert fast_streams.main() == 1
    assert f"no lg and mock in {tmp_path}" in capsys.readouterr().err
