"""Tests of `loadtest.bench.streams`."""

import pytest

from loadtest.bench.streams import allowed_streams


def test_streams_are_bounded_by_the_open_files_that_both_sides_may_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert allowed_streams(1, 1) == 1
    assert capsys.readouterr().out == ""
    allowed = allowed_streams(10**9, 1)
    assert allowed < allowed_streams(10**9, 2) < 10**9
    assert f"{allowed:,} streams instead of 1,000,000,000" in capsys.readouterr().out
