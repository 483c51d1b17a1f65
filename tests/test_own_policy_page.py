"""``docs/own-policy.md``: its policy works as it stands, in the gateway's guard and in simulate."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-policy.md").read_text()

CHECK = """
from policies import Chosen, place
from router.own_policies import OwnPolicies, check_own_policies, rules_of
from router.own_policies.trial import trials
from router.settings import PlacementSettings, Settings
settings = Settings(placement={"policy": "house_rules:calm", "policy_options": {"spare": 1.0}})
check_own_policies(settings)
policies = OwnPolicies(settings.placement)
policy = policies.make("house_rules:calm", {"spare": 1.0})
assert all(isinstance(place(request, candidates, policy), Chosen) for request, candidates in trials())
assert policies.troubles() == []
"""


def _code(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.M | re.S)


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(folder), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False
    )


def test_the_policy_of_the_page_is_loaded_and_decides(tmp_path: Path) -> None:
    (code,) = _code("python")
    (tmp_path / "house_rules.py").write_text(code)
    ran = _run(tmp_path, sys.executable, "-c", CHECK)
    assert ran.returncode == 0, ran.stderr


def test_the_command_of_the_page_compares_it_in_virtual_time(tmp_path: Path) -> None:
    (tmp_path / "house_rules.py").write_text(_code("python")[0])
    (line,) = (line for block in _code("sh") for line in block.splitlines() if "simulate" in line)
    ran = _run(tmp_path, *line.split(), "--jobs", "1")
    assert ran.returncode == 0, ran.stderr
    assert all(word in ran.stdout for word in ("expected_cost", "house_rules:calm", "spare=1"))


def test_the_policy_has_the_length_that_is_promised() -> None:
    """Twenty lines with its words."""
    assert len([line for line in _code("python")[0].splitlines() if line.strip()]) <= 20


def test_the_table_names_every_column() -> None:
    from router.own_policies import WorkersView

    columns = {name for name, value in vars(WorkersView).items() if isinstance(value, property)}
    rows = re.findall(r"^\| (`[^|]*) \|", PAGE, re.M)
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == columns
