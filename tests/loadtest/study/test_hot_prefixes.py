"""Copies made ahead of the queue shorten the wait for a hot prefix, and change nothing where none is hot."""

import pytest

from loadtest.study import hot_prefixes
from loadtest.study.hot_prefixes import HORIZON_S, figures, main, traffic


def test_copies_shorten_the_wait_for_one_hot_prefix() -> None:
    """First seed of the study (decision 0067); the limit leaves room for chance."""
    workload = traffic(1, 1)
    workload.check()
    (_, _, without_s), (_, _, copied_s) = (
        figures(workload, "dense-70b", 0.6, 1, horizon_s) for horizon_s in (0.0, HORIZON_S)
    )
    assert copied_s < 0.9 * without_s


def test_every_cell_has_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hot_prefixes, "traffic", lambda seed, heads: traffic(seed, heads, requests=60))
    main(["2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0].split() for line in lines[1:]] == [
        [str(heads), "hot", str(load), "2"] for heads in (1, 4) for load in (0.6, 0.8)
    ]
