"""The README's install in a fresh virtual environment, beside packages of others with the names of our parts.

Beside them means: in the same environment, and in the current folder. They must break no command of ours, and
nothing of them may be overwritten.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fakes.page_commands import run, script

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PARTS = ("router", "policies", "radix", "loadtest")
THEIRS = 'raise ImportError("a package of somebody else")\n'
UNREACHABLE = (
    "No matching distribution found",
    "Could not find a version",
    "Connection",
    "Temporary failure",
)
INSTALL_S = 600.0
"""A minute on two idle cores, several times that beside other tests."""


def _put_others(folder: Path) -> None:
    for name in PARTS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(THEIRS)


def _build(target: str, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = out.iterdir()
    return built


def _install(checkout: Path, home: Path, variables: dict[str, str]) -> None:
    """Run the page's install; skip the test where the package index is absent."""
    done = subprocess.run(
        ["bash", "-c", "set -e\n" + script(README, "install")],
        cwd=checkout,
        env=variables,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if done.returncode:
        # Only the index can be absent: a package of it that anything else needs cannot be had either.
        asked = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(home / "asked"), "httpx"]
        if (
            any(word in done.stderr for word in UNREACHABLE)
            and subprocess.run(asked, capture_output=True, check=False).returncode
        ):
            pytest.skip("the package index does not answer: the install of the README is not tried")
        pytest.fail(done.stderr[-4000:])


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.timeout(INSTALL_S + 120)
def test_the_readme_works_in_a_fresh_environment_beside_packages_of_the_same_names(tmp_path: Path) -> None:
    """From a checkout, by the page's commands alone, and with the extras that the page names."""
    with tarfile.open(_build("sdist", tmp_path / "sdist")) as tar:
        tar.extractall(tmp_path, filter="data")
    (checkout,) = tmp_path.glob("cacheway-*")
    home = tmp_path / "home"
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (commands / "python3").chmod(0o755)
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CACHEWAY_", "PYTHON"))}
    cache = os.environ.get("PIP_CACHE_DIR", str(Path("~/.cache/pip").expanduser()))
    path = f"{commands}:{os.environ['PATH']}"
    _install(
        checkout,
        home,
        {**kept, "HOME": str(home), "PATH": path, "PIP_CACHE_DIR": cache, "PIP_NO_COMPILE": "1"},
    )

    environment = home / "cacheway"
    (packages,) = environment.glob("lib/python3*/site-packages")
    assert not [name for name in PARTS if (packages / name).exists()]
    _put_others(packages)
    work = tmp_path / "work"
    _put_others(work)
    variables = {"HOME": str(home), "PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""}
    run(
        "cacheway --version\npython -m cacheway --version\n"
        "cacheway serve --help > help.txt\n"
        "python -I -c 'import cacheway; assert cacheway.WorkersView.__module__.startswith(\"cacheway.\")'\n"
        f"{script(README)}",
        work,
        variables,
    )
    for name in PARTS:
        assert (packages / name / "__init__.py").read_text() == THEIRS


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel and packages of others; first on the path, it hides the checkout."""
    folder = tmp_path_factory.mktemp("site")
    wheel = _build("wheel", tmp_path_factory.mktemp("wheel"))
    shutil.unpack_archive(wheel, folder, "zip")
    _put_others(folder)
    return folder


COMMANDS = {
    "several processes": """
        python -m cacheway engine --port 30001 &
        python -m cacheway serve --port 30000 --workers 2 --worker-urls http://127.0.0.1:30001 &
        until curl -s -o readiness.json http://127.0.0.1:30000/readiness; do sleep 0.2; done
        curl -s http://127.0.0.1:29100/console/assets/main.js > main.js
        curl -s http://127.0.0.1:30000/v1/models > models.json
    """,
    "demo": "python -m cacheway demo --quick",
    "simulate": "python -m cacheway simulate --sessions 4 --workers 2 --jobs 2 --report report.html",
    "other commands": """
        python -c 'import cacheway.router'
        python -m cacheway keys --help
        python -m cacheway config > effective.txt
        python -m cacheway plan --help
    """,
    "engine with events": """
        python -m cacheway engine --port 30001 \\
          --kv-events-config '{"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0"}' &
        until curl -s http://127.0.0.1:30001/health; do sleep 0.2; done
    """,
    "locust": "python -m locust -f LOCUSTFILE --list",
}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_works_beside_packages_of_the_same_names(
    name: str, beside: Path, tmp_path: Path, redis_url: str, namespace: str
) -> None:
    """The dependencies are those of this environment; what is tried is which packages are found."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (commands / "python").chmod(0o755)
    work = tmp_path / "work"
    _put_others(work)
    variables = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(beside),
        "CACHEWAY_REDIS_URL": redis_url,
        "CACHEWAY_NAMESPACE": namespace,
    }
    run(
        COMMANDS[name].replace("LOCUSTFILE", str(beside / "cacheway/loadtest/locustfile.py")), work, variables
    )
