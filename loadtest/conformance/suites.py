"""Gets a suite, lays shims in front of Cacheway, and runs the suite."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SGLANG_ROUTER = "sglang-router==0.3.0"
"""The newest sdist that holds a black-box suite in Python; later ones have it in Rust."""

SGLANG_ROUTER_SHA256 = "0dc6752c6c70267670dec68e73d6e4fe0bbd8fc9e3c971bd9211ffc504f0ae25"

LAUNCHERS = ("sglang_router", "vllm_router")
"""Packages whose ``launch_router`` the suites start."""

SUITES = ("py_test/integration_mock", "py_test/integration")
"""Where the suites are in their repositories."""

ENVIRONMENT = {
    "CACHEWAY_ADMIN_PORT": "0",
    "CACHEWAY_SHUTDOWN_DELAY_SECS": "0",
    "CACHEWAY_LOG_LEVEL": "warning",
    "PYTHONDONTWRITEBYTECODE": "",
}
"""Environment that suites expect; without bytecode every start of the gateway compiles it."""

_SHIM = '''"""Starts Cacheway in place of this router."""

import os
import sys

cacheway = os.environ["SHIM_STARTS"]
os.execv(cacheway, [cacheway, "serve", *sys.argv[1:]])
'''

_BACKEND = '''"""Stands in for maturin: pip asks for a package's metadata before it keeps its files."""

from pathlib import Path


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    written = Path(folder, "sglang_router-0.3.0.dist-info")
    written.mkdir()
    (written / "METADATA").write_bytes(Path("PKG-INFO").read_bytes())
    return written.name
'''


class SuiteMissing(Exception):
    """A suite cannot be had; the message says why."""


def download(home: Path) -> Path:
    """Return the unpacked sdist of sglang-router, from the package index unless it is there already."""
    unpacked = home / SGLANG_ROUTER.replace("-", "_").replace("==", "-")
    if unpacked.is_dir():
        return unpacked
    backend = home / "backend" / "maturin.py"
    backend.parent.mkdir(parents=True, exist_ok=True)
    backend.write_text(_BACKEND)
    wanted = home / "requirements.txt"
    wanted.write_text(f"{SGLANG_ROUTER} --hash=sha256:{SGLANG_ROUTER_SHA256}\n")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"),
        *("--dest", str(home), "--requirement", str(wanted)),
    ]
    asked = subprocess.run(  # noqa: S603 - our own arguments
        command,
        env={**os.environ, "PYTHONPATH": str(backend.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    sdist = home / f"{unpacked.name}.tar.gz"
    if asked.returncode or not sdist.is_file():
        raise SuiteMissing(f"pip cannot get {SGLANG_ROUTER}: {asked.stderr.strip()[-500:]}")
    with tarfile.open(sdist) as archive:
        archive.extractall(home, filter="data")
    return unpacked


def suite_in(repository: Path) -> Path:
    """Return the folder of a repository's suite."""
    for name in SUITES:
        if (repository / name).is_dir():
            return repository / name
    raise SuiteMissing(f"there is no {' and no '.join(SUITES)} in {repository}")


def lay_shims(home: Path) -> Path:
    """Write packages with the routers' names whose launchers start Cacheway; return their folder."""
    folder = home / "shims"
    for name in LAUNCHERS:
        package = folder / name
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "launch_router.py").write_text(_SHIM)
    return folder


def environment(shims: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a suite: ``python3`` is this one, and the routers' packages are the shims."""
    python = Path(sys.executable).parent
    command = shutil.which("cacheway", path=str(python))
    if command is None:
        raise SuiteMissing(f"there is no cacheway beside {sys.executable}; run make setup")
    kept = {name: value for name, value in environ.items() if not name.startswith("CACHEWAY_")}
    return {
        **kept,
        **ENVIRONMENT,
        "SHIM_STARTS": command,
        "PATH": f"{python}{os.pathsep}{environ.get('PATH', '')}",
        "PYTHONPATH": str(shims),
    }


def run(suite: Path, home: Path, arguments: Sequence[str] = ()) -> int:
    """Run a suite; return pytest's status.

    It runs in a folder of its own: ``python3 -m`` looks in the working directory first, where a checkout has
    the router itself.
    """
    folder = home / "run"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(suite.parents[1]), "-q", *arguments, str(suite)]
    return subprocess.run(  # noqa: S603 - our own arguments
        command, cwd=folder, env=environment(lay_shims(home), os.environ), check=False
    ).returncode
