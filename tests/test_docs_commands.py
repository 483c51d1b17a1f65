"""Commands in the pages work as they stand: blocks marked ``sh run`` are run, against real processes.

    ```sh run
    cacheway engine --port 30001 &
    curl -s http://127.0.0.1:30000/readiness
    ```

All marked blocks of a page are one script, in the order of the page: what an earlier one started is still
there. What readers need not see is in a comment, from ``<!-- sh run`` to ``-->``. The script runs in an empty
folder, with ``cacheway`` on the path, a Valkey and a namespace of its own, and each port that the page names
replaced by a free one. It fails with the first command that does, also with an HTTP error.
"""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.processes import free_port

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TIMEOUT_S = 90

PORTS = re.compile(r"(?<=[: ])(30\d\d\d|291\d\d|29000|8998|4318)\b")
SOMEWHERE = "10.0.0.7"
"""Where a worker is in an example; it is here when that is run."""

DEFAULT_PORTS = {"CACHEWAY_ADMIN_PORT": "29100", "CACHEWAY_PORT": "30000"}

PRELUDE = """
set -eu -o pipefail
curl() { command curl --fail-with-body "$@"; }
"""


def script(page: Path) -> str:
    """What is to be run of a page; empty if nothing is."""
    blocks = re.findall(r"^(?:```|<!-- )sh run\n(.*?)^(?:```|-->)$", page.read_text(), re.M | re.S)
    return "\n".join(blocks).replace(SOMEWHERE, "127.0.0.1")


def free_ports(wanted: set[int]) -> dict[str, str]:
    """A free port for each; those that follow each other go on doing so, as ports of several engines do."""
    ports: dict[int, int] = {}
    for port in sorted(wanted):
        if port not in ports:
            row = next(length for length in itertools.count(1) if port + length not in wanted)
            base = next(
                base
                for base in iter(free_port, 0)
                if all(free_port(port) == port for port in range(base, base + row))
            )
            ports |= {port + step: base + step for step in range(row)}
    return {str(port): str(found) for port, found in ports.items()}


RUN = [page for page in PAGES if script(page)]


def test_pages_are_run_at_all() -> None:
    assert {page.name for page in RUN} >= {"README.md", "operating.md", "observability.md", "migrating.md"}


def test_no_block_is_marked_in_a_way_that_nobody_runs() -> None:
    for page in PAGES:
        marked = set(re.findall(r"^```(\S+ [^\n]*)$", page.read_text(), re.M))
        assert marked <= {"sh run"}, page.name


def test_the_install_commands_are_the_same_on_both_pages() -> None:
    """Those of ``docs/kubernetes.md`` are tested there."""
    install = re.compile(r"^```sh\n((?:(?:docker|sh|kubectl) [^\n]*\n){3})```$", re.M)
    (front,) = install.findall((ROOT / "README.md").read_text())
    assert front == install.findall((ROOT / "docs" / "kubernetes.md").read_text())[0]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_work(page: Path, tmp_path: Path, redis_url: str, namespace: str) -> None:
    text = script(page)
    ports = free_ports({int(port) for port in (*PORTS.findall(text), *DEFAULT_PORTS.values())})
    commands = tmp_path / "bin"
    commands.mkdir()
    cacheway = commands / "cacheway"
    cacheway.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m router "$@"\n')
    cacheway.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    output = tmp_path / "output"
    with output.open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", PRELUDE + PORTS.sub(lambda port: ports[port[0]], text)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("CACHEWAY_")},
                "PATH": f"{commands}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "NO_PROXY": "*",
                "CACHEWAY_REDIS_URL": redis_url,
                "CACHEWAY_NAMESPACE": namespace,
                "CACHEWAY_SHUTDOWN_DELAY_SECS": "0",
                **{name: ports[port] for name, port in DEFAULT_PORTS.items()},
            },
        )
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pytest.fail("it does not end: " + output.read_text(errors="replace")[-4000:])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # all that it started: the session is its own
            status = process.wait()
    assert status == 0, output.read_text(errors="replace")[-4000:]
