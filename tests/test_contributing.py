"""The worked examples of CONTRIBUTING.md, added to a copy of the code and run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```python\n# (?P<file>[\w/]+\.py)(?P<part>:[^\n]*)?\n(?P<code>.*?)```", re.DOTALL)

POLICY = """
import numpy as np
from types import SimpleNamespace
from policies.scoring import make_policy
policy = make_policy("least_tokens")
assert policy.unit == "tokens in flight"
assert list(policy.costs(None, SimpleNamespace(inflight_tokens=np.array([3.0, 1.0])))) == [3.0, 1.0]
"""

DIALECT = """
from router.fleet.engine_load import engine_load
load = engine_load(b"ferry:running 3\\nferry:waiting 2\\nferry:kv_usage_ratio 0.5\\n")
assert (load.running, load.waiting, load.kv_ratio) == (3, 2, 0.5)
"""

SETTING = """
import asyncio
from policies import WorkerPut
from router.app import GatewayProcess
from router.settings import Settings
async def changed():
    process = GatewayProcess(Settings(), redis_url="redis://127.0.0.1:1/0")
    process.fleet.apply(WorkerPut("w", 1, "one", "http://w:1", capacity_tokens=10_000))
    admission = process.gateway.placing.admission
    assert admission.kv_tokens_max(0) == 9_500
    process.live.change({"admission.kv_free_tokens_min": 1_000})
    assert admission.kv_tokens_max(0) == 8_500
asyncio.run(changed())
"""

METRIC = """
from router.metric_families import EMPTY_BODIES, metrics_reference
from router.metrics import Metrics
metrics = Metrics("1")
metrics.counts[EMPTY_BODIES].add(("chat",))
assert 'cacheway_empty_bodies_total{route="chat"} 1.0' in metrics.exposition()[0].decode()
assert "cacheway_empty_bodies" in metrics_reference()
"""

REGISTER = """
import os
import sys
import pytest
from policies import FleetState
from policies.state.ops import AnswersLearned
fleet, newcomer = FleetState(), FleetState()
for at_us, tokens in ((5, 250.0), (4, 90.0)):
    fleet.apply(AnswersLearned("m", at_us, "r1", tokens))
newcomer.restore(fleet.snapshot())
assert newcomer.registers.newest(AnswersLearned, "m").tokens == 250.0
sys.path.insert(0, "tests")
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and all take seconds
tests = ["tests/policies/state/test_registers.py", "-k", "AnswersLearned", "-p", "no:cacheprovider"]
assert pytest.main(tests) == pytest.ExitCode.OK
"""


def examples(page: str) -> dict[tuple[str, bool], str]:
    """Code by the file it belongs to, and whether it is only a part of it."""
    return {(found["file"], found["part"] is not None): found["code"] for found in EXAMPLE.finditer(page)}


@pytest.mark.parametrize(
    ("module", "name", "row_after", "used"),
    [
        ("policies/scoring/least_tokens.py", "least_tokens", "least_load", POLICY),
        ("router/engines/ferry.py", "FERRY", "DIALECTS = ", DIALECT),
    ],
)
def test_an_example_is_one_file_and_one_row(
    tmp_path: Path, module: str, name: str, row_after: str, used: str
) -> None:
    found = copied_with_examples(tmp_path)
    front = str(Path(module).parent / "__init__.py")
    (tmp_path / module).write_text(found[module, False])
    (tmp_path / front).write_text(with_row(tmp_path / front, module, name, row_after, found[front, True]))
    run(tmp_path, used)


def test_a_metric_is_one_declaration(tmp_path: Path) -> None:
    found = copied_with_examples(tmp_path)
    families = tmp_path / "router/metric_families.py"
    before, catalogue, after = families.read_text().partition("FAMILIES: ")
    families.write_text(before + found["router/metric_families.py", True] + catalogue + after)
    run(tmp_path, METRIC)


def test_a_live_setting_is_a_declaration_and_its_use(tmp_path: Path) -> None:
    found = copied_with_examples(tmp_path)
    admission = tmp_path / "policies/fleet/admission.py"
    declaration, use = found["policies/fleet/admission.py", False].split("\n\n\n")
    field = declaration.partition("class AdmissionRules:\n")[2]
    (line,) = (line for line in use.splitlines() if "kv_free_tokens_min" in line)
    before, check, after = admission.read_text().partition("    def __post_init__")
    used = line.partition(" - ")[0].strip()
    assert used in after
    admission.write_text(before + field + "\n\n" + check + after.replace(used, line.strip()))
    run(tmp_path, SETTING)


def test_a_register_is_one_struct_and_tested_by_its_declaration(tmp_path: Path) -> None:
    found = copied_with_examples(tmp_path)
    ops = tmp_path / "policies/state/ops.py"
    before, union, after = ops.read_text().partition("Op = (")
    ops.write_text(before + found["policies/state/ops.py", True] + "\n\n" + union + after)
    shutil.copytree(ROOT / "tests/fakes", tmp_path / "tests/fakes")
    tests = Path("tests/policies/state/test_registers.py")
    (tmp_path / tests).parent.mkdir(parents=True)
    shutil.copy(ROOT / tests, tmp_path / tests)
    run(tmp_path, REGISTER)


def copied_with_examples(folder: Path) -> dict[tuple[str, bool], str]:
    """Copy the code, and return the examples."""
    for name in ("radix", "policies", "router"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return examples((ROOT / "CONTRIBUTING.md").read_text())


def run(folder: Path, code: str) -> None:
    """Run code on the copy, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def with_row(front: Path, module: str, name: str, row_after: str, row: str) -> str:
    """The front door with the import and the row: behind the line of another one, or in its place."""
    lines = front.read_text().splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if line.strip().strip('"').startswith(row_after))
    lines[at : at + 1] = [row] if row.startswith(row_after) else [lines[at], row]
    first = next(
        index
        for index, line in enumerate(lines)
        if line.startswith("from policies.", 0) or "router.engines." in line
    )
    dotted = module.removesuffix(".py").replace("/", ".")
    lines.insert(first, f"from {dotted} import {name}\n")
    return "".join(lines)
