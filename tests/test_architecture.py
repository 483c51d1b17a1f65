"""The walls of the house: what import contracts cannot say."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("radix", "policies", "router", "loadtest")
MODULES = sorted(
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "bench" not in path.parts
)


def _imports(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    return [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module] + [
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    ]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_packages_meet_at_the_front_door(module: Path) -> None:
    """``from policies import place``, never ``from policies.scoring.placement import place``."""
    doors = [name for name in ("radix", "policies") if module.parts[0] != name]
    inside = [name for name in _imports(ROOT / module) if name.split(".")[0] in doors and "." in name]
    assert inside == []


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_module_opens_with_its_design_note(module: Path) -> None:
    assert ast.get_docstring(ast.parse((ROOT / module).read_text()))


def test_the_tests_mirror_the_code() -> None:
    """A module with behaviour of its own has a test file of its own, at the same place."""
    missing = []
    for module in MODULES:
        tree = ast.parse((ROOT / module).read_text())
        behaves = any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))
        ports_only = module.name == "ports.py"
        if not behaves or ports_only:
            continue
        name = "main" if module.name == "__main__.py" else module.stem
        mirror = ROOT / "tests" / module.parent / f"test_{name}.py"
        if module.name == "__init__.py":
            mirror = ROOT / "tests" / module.parent / f"test_{module.parent.name}.py"
        if not mirror.exists():
            missing.append(f"{module} -> {mirror.relative_to(ROOT)}")
    assert missing == []


def test_no_module_hides_behind_a_vague_name() -> None:
    vague = {"utils.py", "helpers.py", "common.py", "queue.py", "select.py", "logging.py"}
    assert [str(module) for module in MODULES if module.name in vague] == []
