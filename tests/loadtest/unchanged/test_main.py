"""The command: its records, names and confirmations."""

from functools import cache
from pathlib import Path

import pytest

from loadtest.unchanged import __main__ as command
from loadtest.unchanged import cells, surfaces, wire
from loadtest.unchanged.cells import Cell
from loadtest.unchanged.facts import read, write
from loadtest.unchanged.revision import Revision, confirmed

PRESENT, WIRE = cache(command.present), cache(wire.facts)
"""Facts of the running code, read and requested once for all tests."""

TWO = [Cell("pairs", 1, False, 1, policy) for policy in ("expected_cost", "round_robin")]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the simulations, which run once for all tests."""
    return tmp_path_factory.mktemp("simulated")


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, simulated: Path) -> list[str]:
    """A baseline of two cells in a temporary folder."""
    monkeypatch.setattr(cells, "cells", lambda *, quick=False: TWO)
    monkeypatch.setattr(command, "present", PRESENT)
    monkeypatch.setattr(wire, "facts", WIRE)
    monkeypatch.setattr(surfaces, "facts", lambda *, counts_calls: {"openapi, /workers": "1"})
    files = {name: str(tmp_path / name) for name in ("baseline", "same", "traces")} | {"kept": str(simulated)}
    arguments = [argument for name, path in files.items() for argument in (f"--{name}", path)]
    assert command.main(["record", *arguments]) == 0
    return arguments


def changed(path: Path, name: str) -> None:
    write(path, read(path) | {name: "other"})


def test_code_that_changed_nothing_compares_equal(
    paths: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["compare", *paths]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", [TWO[0].name, "op Placed", "snapshot", "openapi, /workers"])
def test_what_differs_is_named(
    paths: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    changed(tmp_path / "baseline", name)

    assert command.main(["compare", *paths]) == 1
    assert capsys.readouterr().out.startswith(f"{name}: was other, is ")


def test_code_that_decides_the_same_is_listed_once(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = confirmed(tmp_path / "same")
    now = Revision("now", "model")
    monkeypatch.setattr(command, "present", lambda: now)

    for _ in range(2):
        assert command.main(["confirm", *paths]) == 0

    assert confirmed(tmp_path / "same") == [*recorded, now]


def test_code_that_decides_otherwise_is_not_confirmed(
    paths: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(tmp_path / "baseline", TWO[1].name)
    before = (tmp_path / "same").read_text()

    assert command.main(["confirm", *paths]) == 1
    assert TWO[1].name in capsys.readouterr().out
    assert (tmp_path / "same").read_text() == before


def test_nothing_is_confirmed_without_a_baseline(paths: list[str], tmp_path: Path) -> None:
    (tmp_path / "baseline").unlink()

    assert command.main(["confirm", *paths]) == 1


@pytest.mark.parametrize(("name", "kept"), [(TWO[0].name, False), ("op Placed", True)])
def test_a_new_baseline_keeps_what_was_confirmed_only_if_decisions_are_equal(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kept: bool
) -> None:
    recorded = confirmed(tmp_path / "same")
    changed(tmp_path / "baseline", name)
    now = Revision("now", "model")
    monkeypatch.setattr(command, "present", lambda: now)

    assert command.main(["record", *paths]) == 0

    assert confirmed(tmp_path / "same") == [*(recorded if kept else []), now]


def test_an_interrupted_run_goes_on_where_it_was(
    paths: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    write(kept / f"{command._key(command.present())}.txt", {TWO[0].name: "other"})

    assert command.main(["compare", *paths[:-1], str(kept)]) == 1
    assert capsys.readouterr().out.startswith(f"{TWO[0].name}: was ")


def test_a_new_baseline_of_several_replicas_keeps_what_one_replica_decided(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = confirmed(tmp_path / "same")
    path = tmp_path / "baseline"
    write(path, read(path) | {TWO[0].name.replace("1 replicas", "8 replicas"): "other"})
    monkeypatch.setattr(command, "present", lambda: Revision("now", "model"))

    assert command.main(["record", *paths]) == 0

    assert confirmed(tmp_path / "same") == [*recorded, Revision("now", "model")]
    assert confirmed(tmp_path / "same", replicas=8) == [Revision("now", "model")]
