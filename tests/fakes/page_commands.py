"""Commands of the pages: read, given free ports, and run as one script with nothing else of this machine."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from loadtest.processes import free_port

TIMEOUT_S = 90

PORTS = re.compile(r"(?<=[: ])(30\d\d\d|291\d\d|29000|8998|4318)\b")
SOMEWHERE = "10.0.0.7"
"""Address of a worker in an example; the worker here takes its place."""

DEFAULT_PORTS = {"CACHEWAY_ADMIN_PORT": "29100", "CACHEWAY_PORT": "30000"}

PRELUDE = """
set -eu -o pipefail
curl() { command curl --fail-with-body "$@"; }
"""


def script(page: Path, mark: str = "run") -> str:
    """Blocks of a page that are marked ``sh run``, or with another word; empty if there are none."""
    blocks = re.findall(rf"^(?:```|<!-- )sh {mark}\n(.*?)^(?:```|-->)$", page.read_text(), re.M | re.S)
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


def run(text: str, folder: Path, variables: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
    """Run commands in a folder and fail the test if one fails; all that they started ends with them.

    ``variables`` are added to the environment, without settings of ours.
    """
    ports = free_ports({int(port) for port in (*PORTS.findall(text), *DEFAULT_PORTS.values())})
    folder.mkdir(exist_ok=True)
    output = folder.with_suffix(".output")
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
                "NO_PROXY": "*",
                "CACHEWAY_SHUTDOWN_DELAY_SECS": "0",
                **{name: ports[port] for name, port in DEFAULT_PORTS.items()},
                **variables,
            },
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail("it does not end: " + output.read_text(errors="replace")[-4000:])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # all that it started: the session is its own
            status = process.wait()
    assert status == 0, output.read_text(errors="replace")[-4000:]
