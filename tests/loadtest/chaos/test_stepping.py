"""Only the wall clock steps, and only on command."""

import subprocess
import sys

STEPS = """
import os, signal, time
from loadtest.chaos import stepping
before, steady = time.time(), time.monotonic()
stepping.install()
assert abs(time.time() - before) < 5
os.kill(os.getpid(), signal.SIGUSR1)
assert 55 < time.time() - before < 65
assert 55e9 < time.time_ns() - before * 1e9 < 65e9
os.kill(os.getpid(), signal.SIGUSR2)
os.kill(os.getpid(), signal.SIGUSR2)
assert -65 < time.time() - before < -55
assert time.monotonic() - steady < 30
"""


def test_signals_step_the_wall_clock_a_minute_either_way() -> None:
    """In a process of its own: its clock stays wrong."""
    subprocess.run((sys.executable, "-c", STEPS), check=True)
