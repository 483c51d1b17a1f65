"""Hardware and software of a run, without the identity of the machine."""

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware, kernel and the interpreter that runs cacheway."""

    cpu: str
    cpus: int
    kernel: str
    python: str

    @classmethod
    def here(cls) -> Self:
        """Describe this one."""
        kernel = ".".join(platform.release().split(".")[:2])
        return cls(
            cpu=cpu_model(Path("/proc/cpuinfo").read_text()),
            cpus=os.cpu_count() or 1,
            kernel=f"{platform.system()} {kernel}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
        )


def cpu_model(cpuinfo: str) -> str:
    """Take the model out of /proc/cpuinfo; what the architecture is called if it says nothing."""
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return model[1].strip() if model else platform.machine()


def cacheway_version(folder: Path) -> str:
    """Version of the package, and of its sources where they are a checkout."""
    version = metadata.version("cacheway")
    try:
        commit = _said("git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude", "*")
    except (OSError, subprocess.CalledProcessError):
        return version
    return f"{version} ({commit})"


def package_version(python: Path, package: str) -> str:
    """Version of a package in another virtual environment.

    `OSError` or `CalledProcessError` if there is none.
    """
    program = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    return _said(str(python), "-c", program, package)


def nginx_version(binary: Path) -> str:
    """Version of nginx from its standard error; `OSError` or `CalledProcessError` if it is none."""
    return _said(str(binary), "-v").rpartition("/")[2]


def _said(*command: str) -> str:
    done = subprocess.run(  # noqa: S603 - no shell, no words of others
        command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.stdout.strip()
