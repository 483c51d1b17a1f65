"""The distribution holds what serves and what users run, and nothing of our own laboratory."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
TOOLS = {"client", "demo", "engine", "ideal", "locustfile", "locusts", "plan", "processes", "progress"}
TOOLS |= {"replay", "report", "scenario", "simulator", "traces", "workload"}
"""What users run, and what that needs; the rest of `loadtest` is our own laboratory."""


def _wheel(source: Path, out: Path) -> set[str]:
    """Build a wheel of a source tree without a network, and return the names of its modules."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return _wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def _modules(*packages: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for one in packages for path in (ROOT / one).rglob("*.py")}


def test_the_wheel_holds_the_gateway_and_what_users_run(wheel: set[str]) -> None:
    modules = {name for name in wheel if name.endswith(".py")}
    assert modules >= _modules("router", "policies", "radix", *(f"loadtest/{tool}" for tool in TOOLS)) - {
        name for name in _modules("loadtest/plan") if name.startswith("loadtest/plan/prfaas/")
    }
    assert {Path(name).parts[0] for name in wheel} == {"router", "policies", "radix", "loadtest"}


def test_the_wheel_holds_nothing_of_the_laboratory(wheel: set[str]) -> None:
    tools = {Path(name).parts[1].removesuffix(".py") for name in wheel if name.startswith("loadtest/")}
    assert tools == TOOLS | {"__init__", "py.typed"}
    assert not [name for name in wheel if name.startswith("loadtest/plan/prfaas/")]


def test_what_the_wheel_holds_imports_nothing_that_it_lacks(wheel: set[str]) -> None:
    lacking = []
    for name in sorted(wheel):
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("loadtest"):
                path = node.module.replace(".", "/")
                if not {f"{path}.py", f"{path}/__init__.py"} & wheel:
                    lacking.append((name, node.module))
    assert lacking == []


def test_the_gateways_image_has_no_load_tests(tmp_path: Path) -> None:
    """Its build copies the packages that serve; `pip` builds the wheel from no more than these."""
    stage = DOCKERFILE.split(" AS installed\n")[1].split("\nFROM ")[0]
    copied = [line.split()[1:-1] for line in stage.splitlines() if line.startswith("COPY ")]
    for name in (name for names in copied for name in names):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path)
    held = _wheel(tmp_path, tmp_path / "dist")
    assert {Path(name).parts[0] for name in held} == {"router", "policies", "radix"}
