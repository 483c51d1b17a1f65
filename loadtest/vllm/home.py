"""Folder of real engines outside the project, which many checkouts share.

    ~/.cache/cacheway/engines        or what CACHEWAY_ENGINES says
    |-- vllm/                        a virtual environment of its own (`loadtest.vllm.install`)
    |-- vllm.json                    its content; written last, so an interrupted install counts as none
    |-- install.log
    `-- models/qwen3, gemma3, ...    tiny models (`loadtest.vllm.models`)

The folder need not exist.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

VARIABLE = "CACHEWAY_ENGINES"

HOW_TO_INSTALL = "python -m loadtest.vllm install"


class EngineFailed(Exception):
    """An engine cannot be installed or does not come up; the message says what to do."""


@dataclass(frozen=True, slots=True)
class EnginesHome:
    """The folder."""

    folder: Path

    @classmethod
    def usual(cls) -> Self:
        """Return the one that the environment names, or the default."""
        named = os.environ.get(VARIABLE)
        return cls(Path(named).absolute() if named else Path.home() / ".cache" / "cacheway" / "engines")

    @property
    def venv(self) -> Path:
        """Virtual environment of vLLM."""
        return self.folder / "vllm"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.venv / "bin" / "python"

    @property
    def vllm(self) -> Path:
        """Its ``vllm`` command."""
        return self.venv / "bin" / "vllm"

    @property
    def models(self) -> Path:
        """Folder of the tiny models."""
        return self.folder / "models"

    def installed(self) -> dict[str, str]:
        """Return the versions of installed packages; empty if none is installed, or not all are."""
        try:
            stamp = json.loads(self._stamp.read_bytes())
        except (OSError, ValueError):
            return {}
        whole = isinstance(stamp, dict) and self.vllm.exists()
        return {str(package): str(version) for package, version in stamp.items()} if whole else {}

    def stamp(self, versions: dict[str, str]) -> None:
        """Say that this is installed now; nothing if ``versions`` is empty."""
        if not versions:
            self._stamp.unlink(missing_ok=True)
            return
        fresh = self._stamp.with_suffix(".new")
        fresh.write_text(json.dumps(versions, indent=1) + "\n")
        fresh.replace(self._stamp)

    @property
    def _stamp(self) -> Path:
        return self.folder / "vllm.json"
