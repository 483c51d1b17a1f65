"""A way into a namespace is one that works here; without one there is none."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.chaos import namespace
from loadtest.chaos.namespace import INSIDE_FLAG, go_inside, way_in
from loadtest.chaos.testbed import INNER_HOST

FURNISHED = "from loadtest.chaos.namespace import furnish; furnish()"


def test_without_the_tools_there_is_no_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert way_in() is None


def test_without_tun_devices_there_is_no_way_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(namespace, "TUN", tmp_path / "tun")
    assert way_in() is None


def test_where_nothing_may_be_unshared_there_is_no_way_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(namespace, "TUN", tmp_path)
    monkeypatch.setattr(namespace, "_AS_ROOT", ("false",))
    monkeypatch.setattr(namespace, "_AS_ANYBODY", ("false",))
    assert way_in() is None


def test_inside_there_is_an_address_that_is_not_outside() -> None:
    way = way_in()
    if way is None:
        pytest.skip("no network namespaces with TUN devices can be had here")
    look = f"import subprocess; {FURNISHED}; subprocess.run(('ip', '-brief', 'address'), check=True)"
    inside = subprocess.run((*way, sys.executable, "-c", look), capture_output=True, check=True, text=True)
    outside = subprocess.run(("ip", "-brief", "address"), capture_output=True, check=True, text=True)
    assert INNER_HOST in inside.stdout
    assert INNER_HOST not in outside.stdout


def test_what_runs_inside_is_the_suite_with_the_same_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr("os.execvp", lambda file, command: ran.append((file, *command)))
    go_inside(("unshare", "--net"), ["--seed", "3"])
    assert ran == [
        (
            *("unshare", "unshare", "--net", sys.executable, "-m", "loadtest.chaos"),
            *(INSIDE_FLAG, "--seed", "3"),
        )
    ]
