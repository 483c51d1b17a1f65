"""The totals of a run, and the promises it broke.

Locust is imported in a process of its own: it patches all.
"""

import subprocess
import sys
from textwrap import dedent

import pytest

PREAMBLE = """
from loadtest.client import Outcome
from loadtest.locusts.presets import PRESETS
from loadtest.locusts.summary import Summary

def outcome(status=200, error=None, prompt=100, cached=60):
    return Outcome(0.1, 0.01, 0.02, 1.0, prompt, cached, 10, status, error, "", "", ())

def counted(completed=0, rejected=0, cut=0):
    summary = Summary()
    for _ in range(completed):
        summary.add("chat", outcome())
    for _ in range(rejected):
        summary.add("chat", outcome(429, "status 429"))
    for _ in range(cut):
        summary.add("agent", outcome(200, "the stream broke"))
    return summary
"""


def run(code: str) -> None:
    """Run checks in a process that gevent may patch."""
    command = [sys.executable, "-W", "ignore", "-c", PREAMBLE + dedent(code)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "code",
    [
        # A rejected request is not counted as begun, and has reused nothing.
        """
        total = counted(completed=8, rejected=4, cut=2).total
        assert (total.sent, total.completed, total.rejected, total.failed) == (14, 8, 4, 2)
        assert (total.completed_ratio, total.hit_ratio) == (0.8, 0.6)
        """,
        # A cut stream breaks every preset; one in a thousand does not.
        """
        for preset in PRESETS.values():
            assert counted(completed=500, cut=1).broken(preset)
            assert not counted(completed=2000, cut=1).broken(preset)
        """,
        # No request may be rejected in a smoke test, half of all may be in an overload.
        """
        assert counted(completed=50, rejected=1).broken(PRESETS["smoke"])
        assert not counted(completed=50, rejected=50).broken(PRESETS["overload"])
        """,
        # A run that served no request keeps no promise.
        """
        assert Summary().broken(PRESETS["overload"]) == ["no request was served"]
        assert counted(rejected=5).broken(PRESETS["overload"])
        """,
        # A worker sends each count once.
        """
        worker, master = counted(completed=3, cut=1), Summary()
        for _ in range(2):
            data = {}
            worker.report(data)
            master.heard("w", data)
        worker.add("chat", outcome())
        data = {}
        worker.report(data)
        master.heard("w", data)
        master.heard("w", {})
        assert master.kinds == worker.kinds
        assert master.total.completed == 4
        worker.finished = 1
        for name in ("a", "a", "b"):
            data = {}
            worker.report(data)
            master.heard(name, data)
        assert master.finished == 2
        """,
    ],
)
def test_of_the_summary(code: str) -> None:
    run(code)
