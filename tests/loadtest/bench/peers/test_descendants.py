"""Descendants of a process end with it, and no other process does."""

import subprocess
import time
from pathlib import Path

from loadtest.bench.peers.descendants import descendants_ended

# A child in a session of its own, and a child of that one; both print their ids when they run.
PARENT = "setsid sh -c 'echo $$; sleep 600 & echo $!; wait' & wait"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_children_and_theirs_end_though_their_parent_forgot_them() -> None:
    with subprocess.Popen(["sh", "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        below = [int(parent.stdout.readline()) for _ in range(2)]
        with descendants_ended(parent.pid):
            parent.kill()
            assert all(alive(pid) for pid in below)

        until_s = time.monotonic() + 20
        while any(alive(pid) for pid in below):
            assert time.monotonic() < until_s
            time.sleep(0.01)


def test_a_process_that_is_not_below_stays() -> None:
    with (
        subprocess.Popen(["sleep", "600"]) as other,
        subprocess.Popen(["sleep", "600"]) as parent,
    ):
        with descendants_ended(parent.pid):
            parent.kill()
        assert other.poll() is None
        other.kill()
