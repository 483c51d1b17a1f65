"""Errors of the subcommands are one line."""

import pytest

from loadtest.engine.cli import main as engine
from loadtest.profile.cli import main as calibrate


def test_a_wrong_flag_is_told_without_a_page_of_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        calibrate(["--trace", "x", "--measure-s", "soon"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "cacheway calibrate: argument --measure-s: invalid float value: 'soon'",
        "See cacheway calibrate --help",
    ]


def test_emulated_engines_are_told_of_in_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        engine(["--engines", "0"])
    assert capsys.readouterr().err.splitlines()[1] == "See cacheway engine --help"
