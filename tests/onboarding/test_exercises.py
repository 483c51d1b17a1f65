"""The exercises of CONTRIBUTING.md: each patch applies to the present code and plants its bug."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHECKS = {
    "retries": """
from policies.dispatch.redispatch import RedispatchRules, RetryBudget
budget = RetryBudget(RedispatchRules())
while budget.withdraw(0.0):
    pass
raise SystemExit(0 if budget.withdraw(1.0) else 3)
""",
    "restart": """
from policies import FleetState, Started, WorkerPut
from radix import FULL_ATTENTION, Insert
fleet = FleetState()
at_us = 1_700_000_000_000_000
fleet.apply(WorkerPut("w", at_us, "a", "http://w:1"))
fleet.apply(Insert("w", b"12345678", at_us))
ten_minutes_behind_ms = at_us // 1000 - 600_000
fleet.apply(Started("w", at_us + 1, "a", ten_minutes_behind_ms, cold=True))
slot = fleet.worker("w").slot
raise SystemExit(3 if fleet.tree.held_blocks(slot) else 0)
""",
}
"""A program for each exercise: its status is 0 with the present code, and 3 with the bug."""


def status(code: Path, check: str) -> int:
    return subprocess.run([sys.executable, "-c", check], cwd=code, check=False).returncode


@pytest.mark.parametrize("name", CHECKS)
def test_an_exercise_plants_its_bug_and_nothing_else(name: str, tmp_path: Path) -> None:
    for package in ("policies", "radix"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert status(tmp_path, CHECKS[name]) == 0
    patch = ROOT / "tests" / "onboarding" / f"{name}.patch"
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    assert status(tmp_path, CHECKS[name]) == 3


def test_every_exercise_is_checked() -> None:
    assert {path.stem for path in (ROOT / "tests" / "onboarding").glob("*.patch")} == set(CHECKS)
