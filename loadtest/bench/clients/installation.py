"""Installation of clients.

    ~/.cache/cacheway/engines/clients/       or in the folder that CACHEWAY_ENGINES names
    |-- guidellm/, aiperf/, infperf/         a virtual environment each: their requirements conflict
    `-- aiperf.installed                     written last, so an interrupted install counts as none

0.8 to 1.5 GB and three to seven minutes each. `vllm bench` comes with vLLM (`loadtest.vllm`), locust and the
OpenAI SDK with this project.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from loadtest.bench.clients.client import Client, Install
from loadtest.vllm import EnginesHome

HOW_TO_INSTALL = "python -m loadtest.bench.clients install"

PROJECT = Path(sys.executable).parent
"""Folder of programs of this project's own environment."""


class InstallFailed(Exception):
    """A client cannot be installed; the message says why, and what to do."""


class Installation:
    """Clients of this machine, in a folder beside the engines in ``home``."""

    def __init__(self, home: EnginesHome) -> None:
        self._home = home

    def program(self, client: Client) -> Path | None:
        """Return what is run; None if the client is not installed."""
        install = client.install
        if install.module and importlib.util.find_spec(install.module) is None:
            return None
        program = self._environment(install) / install.program
        if not program.exists():
            return None
        whole = not install.steps or self._stamp(install).exists()
        return program if whole else None

    def install(self, client: Client, told: Callable[[str], None] = print) -> None:
        """Install a client unless it is there, with progress lines to ``told``.

        `InstallFailed` if that fails.
        """
        install = client.install
        if self.program(client) is not None:
            told(f"{client.name} is there")
            return
        if not install.steps:
            how = "python -m loadtest.vllm install" if install.folder else "make setup"
            raise InstallFailed(f"{client.name} comes with something else: {how}")
        environment = self._environment(install).parent
        environment.parent.mkdir(parents=True, exist_ok=True)
        if not (environment / "bin" / "python").exists():
            _run(_python(install), "-m", "venv", str(environment))
        for requirements in install.steps:
            told(f"{client.name}: {' '.join(requirements)} ...")
            pip = (str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
            _run(*pip, "install", "--quiet", *requirements)
        self._stamp(install).write_text(json.dumps(install.steps) + "\n")
        told(f"{client.name} is ready in {environment}")

    def _environment(self, install: Install) -> Path:
        if not install.folder:
            return PROJECT
        if not install.steps:
            return self._home.folder / install.folder / "bin"
        return self._home.folder / "clients" / install.folder / "bin"

    def _stamp(self, install: Install) -> Path:
        return self._home.folder / "clients" / f"{install.folder}.installed"


def _python(install: Install) -> str:
    """Return an interpreter that a client runs on: ours if it will do."""
    low, high = install.python
    if low <= sys.version_info[:2] <= high:
        return sys.executable
    for minor in range(high[1], low[1] - 1, -1):
        found = shutil.which(f"python{low[0]}.{minor}")
        if found is not None and _runs(found):
            return found
    raise InstallFailed(f"it needs Python {low[0]}.{low[1]} to {high[0]}.{high[1]}, and none is on the path")


def _runs(python: str) -> bool:
    """True if there is an interpreter behind a name: pyenv has shims for versions that it does not use."""
    return subprocess.run((python, "-c", ""), capture_output=True, check=False).returncode == 0  # noqa: S603


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise InstallFailed("\n".join((f"failed: {' '.join(command)}", *output)))
