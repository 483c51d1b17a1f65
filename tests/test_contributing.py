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
    for folder in ("radix", "policies", "router"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    found = examples((ROOT / "CONTRIBUTING.md").read_text())
    front = str(Path(module).parent / "__init__.py")
    (tmp_path / module).write_text(found[module, False])
    (tmp_path / front).write_text(with_row(tmp_path / front, module, name, row_after, found[front, True]))

    done = subprocess.run(
        [sys.executable, "-c", used], cwd=tmp_path, check=False, capture_output=True, text=True
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
