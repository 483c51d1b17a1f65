"""A short run of the chaos suite, as its command line runs it; half an hour of it is ``make chaos``."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUITE = (sys.executable, "-m", "loadtest.chaos", "--clients", "8")

STARTED = 12
"""Eight engines with what watches them, and the suite itself, say where their files are."""


def left_running(mark: str) -> list[str]:
    """Command lines of processes that say so."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            lines.append(line)
    return lines


@pytest.mark.deep
def test_a_short_seeded_run_breaks_no_promise(tmp_path: Path) -> None:
    """A replica, Valkey and a worker are killed within a second."""
    report = tmp_path / "report.json"
    faults = "worker killed,replica killed,Valkey killed"
    flags = ("--minutes", "0.5", "--seed", "4", "--report", str(report), "--only", faults)
    done = subprocess.run((*SUITE, *flags), capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(report.read_text())
    assert figures["broken"] == []
    assert figures["ends"]["answered"] > 100
    assert figures["faults"] == {"worker killed": 1, "replica killed": 1, "Valkey killed": 1}


@pytest.mark.deep
def test_whoever_interrupts_it_leaves_no_process_behind(tmp_path: Path) -> None:
    """While it starts, when some of its processes are there and others are not."""
    flags = ("--minutes", "5", "--seed", "1", "--keep", str(tmp_path / "logs"))
    with subprocess.Popen((*SUITE, *flags), stderr=subprocess.DEVNULL) as suite:
        while len(left_running(str(tmp_path))) < STARTED:
            assert suite.poll() is None
            time.sleep(0.1)
        suite.send_signal(signal.SIGINT)
        suite.wait(timeout=60)
    assert suite.returncode == 130
    assert left_running(str(tmp_path)) == []
