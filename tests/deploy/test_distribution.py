"""The distribution holds the serving packages and the users' tools, and none of the laboratory."""

import ast
import os
import re
import shutil
import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
TOOLS = {
    "client",
    "command_line",
    "demo",
    "engine",
    "ideal",
    "locustfile",
    "locusts",
    "plan",
    "processes",
    "progress",
}
TOOLS |= {"profile", "replay", "report", "scenario", "simulator", "traces", "workload"}
"""The users' tools and the modules that they need; the rest of `loadtest` is the laboratory."""


def _wheel(source: Path, out: Path) -> Path:
    """Build a wheel of a source tree without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def _held(wheel: Path) -> set[str]:
    """Return the files of a wheel without its metadata; those of `cacheway` without that prefix."""
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {Path(name).parts[0] for name in names} == {"cacheway"}
    return {name.removeprefix("cacheway/") for name in names}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> set[str]:
    return _held(built)


def _modules(*packages: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for one in packages for path in (ROOT / one).rglob("*.py")}


def test_the_wheel_holds_the_gateway_and_what_users_run(wheel: set[str]) -> None:
    modules = {name for name in wheel if name.endswith(".py")}
    assert modules >= _modules("router", "policies", "radix", *(f"loadtest/{tool}" for tool in TOOLS)) - {
        name for name in _modules("loadtest/plan") if name.startswith("loadtest/plan/prfaas/")
    }
    folders = {Path(name).parts[0] for name in wheel}
    assert folders == {"router", "policies", "radix", "loadtest", "__init__.py", "__main__.py", "py.typed"}


def test_the_wheel_holds_nothing_of_the_laboratory(wheel: set[str]) -> None:
    tools = {Path(name).parts[1].removesuffix(".py") for name in wheel if name.startswith("loadtest/")}
    assert tools == TOOLS | {"__init__", "py.typed"}
    assert not [name for name in wheel if name.startswith("loadtest/plan/prfaas/")]


def test_what_the_wheel_holds_imports_nothing_that_it_lacks(wheel: set[str]) -> None:
    lacking = []
    for name in sorted(wheel):
        if not name.endswith(".py") or "/" not in name:
            continue
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("loadtest"):
                path = node.module.replace(".", "/")
                if not {f"{path}.py", f"{path}/__init__.py"} & wheel:
                    lacking.append((name, node.module))
    assert lacking == []


def test_the_gateways_image_has_no_load_tests(tmp_path: Path) -> None:
    """The image's build copies the packages that serve; `pip` builds the wheel from no more than these."""
    stage = DOCKERFILE.split(" AS installed\n")[1].split("\nFROM ")[0]
    copied = [line.split()[1:-1] for line in stage.splitlines() if line.startswith("COPY ")]
    for name in (name for names in copied for name in names):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path)
    held = _held(_wheel(tmp_path, tmp_path / "dist"))
    assert {Path(name).parts[0] for name in held if "/" in name} == {"router", "policies", "radix"}


def test_modules_of_the_wheel_import_each_other_below_cacheway_and_are_else_unchanged(built: Path) -> None:
    """Lines stay where they are, so that a traceback leads to the line of the repository."""
    parts = {"router", "policies", "radix", "loadtest"}
    changed = 0
    with ZipFile(built) as archive:
        for name in (name for name in archive.namelist() if name.endswith(".py")):
            source = archive.read(name).decode()
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and not node.level:
                    assert (node.module or "").split(".")[0] not in parts, name
                if isinstance(node, ast.Import):
                    assert not {alias.name.split(".")[0] for alias in node.names} & parts, name
            inside = name.removeprefix("cacheway/")
            original = ROOT / (inside if "/" in inside else name)
            ours = original.read_text().splitlines()
            theirs = source.splitlines()
            assert len(ours) == len(theirs), name
            for one, other in zip(ours, theirs, strict=True):
                if one != other:
                    changed += 1
                    assert one == re.sub(r"\bcacheway\.(?=router|policies|radix|loadtest)", "", other), name
    assert changed > 1_000


def test_every_module_of_the_wheel_can_be_imported(built: Path, tmp_path: Path) -> None:
    """The process has other packages of these names, which raise on import."""
    with ZipFile(built) as archive:
        archive.extractall(tmp_path)
    for name in ("router", "policies", "radix", "loadtest"):
        (tmp_path / f"{name}.py").write_text('raise ImportError("a module of somebody else")')
    program = """
import importlib, pkgutil, sys
import cacheway
for module in pkgutil.walk_packages(cacheway.__path__, "cacheway."):
    # Its import lets gevent change the standard library.
    if not module.name.endswith(("__main__", "locustfile")) and ".locusts" not in module.name:
        importlib.import_module(module.name)
assert cacheway.WorkersView is sys.modules["cacheway.router.own_policies"].WorkersView
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_metadata_say_nothing_that_cannot_be_had(built: Path) -> None:
    """Without the repository's address there are no links; with it, all links of the README are absolute."""
    with ZipFile(built) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        said = message_from_bytes(archive.read(name))
    assert said["Author"] == "The authors of Cacheway"
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_all("Project-URL") is None
    assert not re.findall(r"\]\((?!https?:|#)", str(said.get_payload()))


def test_with_the_address_of_the_repository_all_links_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEWAY_REPOSITORY_URL", "https://git.example.com/team/cacheway/")
    with ZipFile(_wheel(ROOT, tmp_path)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        said = message_from_bytes(archive.read(name))
    base = "https://git.example.com/team/cacheway"
    text, version = str(said.get_payload()), said["Version"]
    assert f"Repository, {base}" in said.get_all("Project-URL", ())
    assert f"({base}/blob/v{version}/docs/kubernetes.md)" in text
    assert f"({base}/raw/v{version}/docs/console.png)" in text
    for path in re.findall(rf"{base}/(?:blob|raw)/v[\d.]+/([^)#]+)", text):
        assert (ROOT / path).exists(), path
