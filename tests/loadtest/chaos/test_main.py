"""Plans of the command line, without running anything."""

import pytest

from loadtest.chaos.__main__ import main
from loadtest.chaos.fault_injector import MISCHIEF


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["--plan", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_plan_is_the_same_for_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    first = planned(capsys, "--minutes", "5", "--seed", "3")
    assert first == planned(capsys, "--minutes", "5", "--seed", "3")
    assert first != planned(capsys, "--minutes", "5", "--seed", "4")
    assert len(first) >= 8


def test_only_some_groups_or_kinds_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    redis = [each.kind.name for each in MISCHIEF if each.kind.group == "redis"]
    lines = planned(capsys, "--only", "redis,disk full", "--minutes", "30")
    assert all(any(name in line for name in (*redis, "disk full")) for line in lines)
    assert any("disk full" in line for line in lines)


def test_a_group_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--plan", "--only", "weather"])
    assert "weather: not one of worker" in capsys.readouterr().err
