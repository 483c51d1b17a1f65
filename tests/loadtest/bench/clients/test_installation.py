"""Places and installation of clients; nothing is downloaded."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.clients.client import Install
from loadtest.bench.clients.field import CLIENTS
from loadtest.bench.clients.installation import Installation, InstallFailed, _python
from loadtest.vllm import EnginesHome


class Named:
    """A client that is only installed."""

    name = "named"

    def __init__(self, install: Install) -> None:
        self.install = install


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Commands that would have been run; an environment and its program appear without them."""
    seen: list[list[str]] = []

    def run(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        seen.append([str(part) for part in command])
        if "venv" in command:
            programs = Path(command[-1]) / "bin"
            programs.mkdir(parents=True)
            (programs / "python").touch()
            (programs / "aiperf").touch()
        status = 1 if "broken==1" in command else 0
        return subprocess.CompletedProcess(command, status, "", "no such thing")

    monkeypatch.setattr(subprocess, "run", run)
    return seen


def test_a_client_is_installed_once(commands: list[list[str]], tmp_path: Path) -> None:
    place = Installation(EnginesHome(tmp_path))
    aiperf = CLIENTS["aiperf"]
    assert place.program(aiperf) is None
    said: list[str] = []
    place.install(aiperf, said.append)
    program = tmp_path / "clients" / "aiperf" / "bin" / "aiperf"
    assert place.program(aiperf) == program
    assert commands[0] == [sys.executable, "-m", "venv", str(tmp_path / "clients" / "aiperf")]
    assert commands[1][-1].startswith("aiperf==")
    place.install(aiperf, said.append)
    assert len(commands) == 2
    assert said[-1] == "aiperf is there"


def test_an_install_that_broke_off_is_none_and_goes_on_where_it_was(
    commands: list[list[str]], tmp_path: Path
) -> None:
    place = Installation(EnginesHome(tmp_path))
    broken = Named(Install("aiperf", "aiperf", steps=(("fine==1",), ("broken==1",))))
    with pytest.raises(InstallFailed, match="no such thing"):
        place.install(broken, lambda _: None)  # type: ignore[arg-type]
    assert place.program(broken) is None  # type: ignore[arg-type]
    whole = Named(replace(broken.install, steps=(("fine==1",),)))
    place.install(whole, lambda _: None)  # type: ignore[arg-type]
    assert place.program(whole) is not None  # type: ignore[arg-type]
    assert sum("venv" in command for command in commands) == 1


def test_torch_comes_before_what_would_bring_another_build_of_it() -> None:
    (first,), (second,) = CLIENTS["guidellm"].install.steps
    assert first.startswith("torch==")
    assert second.startswith("guidellm==")


def test_what_comes_with_something_else_says_with_what(tmp_path: Path) -> None:
    place = Installation(EnginesHome(tmp_path))
    with pytest.raises(InstallFailed, match=r"loadtest\.vllm install"):
        place.install(CLIENTS["vllm-bench"])


def test_the_sdk_is_there_if_it_can_be_imported(tmp_path: Path) -> None:
    place = Installation(EnginesHome(tmp_path))
    assert place.program(CLIENTS["openai-sdk"]) == Path(sys.executable).parent / "python"
    absent = Named(Install("", "python", module="no_such_module_at_all"))
    assert place.program(absent) is None  # type: ignore[arg-type]


def test_a_python_that_is_not_there_is_asked_for(commands: list[list[str]], tmp_path: Path) -> None:
    place = Installation(EnginesHome(tmp_path))
    future = Named(Install("future", "future", python=((3, 97), (3, 99)), steps=(("future==1",),)))
    with pytest.raises(InstallFailed, match=r"needs Python 3\.97 to 3\.99"):
        place.install(future)  # type: ignore[arg-type]


def test_a_name_behind_which_there_is_no_python_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pyenv leaves such names on the path for versions that it does not use."""
    for minor, status in ((98, 0), (99, 127)):
        shim = tmp_path / f"python3.{minor}"
        shim.write_text(f"#!/bin/sh\nexit {status}\n")
        shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert _python(Install("future", "future", python=((3, 97), (3, 99)))) == str(tmp_path / "python3.98")
