"""Suites of other routers: how they are found, and the gateway in their router's place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.conformance.suites import LAUNCHERS, SuiteMissing, environment, lay_shims, suite_in


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_shim_passes_a_command_line_on_as_it_is(tmp_path: Path, name: str) -> None:
    """It starts a program that prints its arguments."""
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    line = ["--worker-urls", "http://a", "--cache-threshold", "0.5", "--api-key", "a b"]
    said = subprocess.run(
        [sys.executable, "-m", f"{name}.launch_router", *line],
        cwd=tmp_path,
        env={**environment(lay_shims(tmp_path), os.environ), "SHIM_STARTS": str(program)},
        capture_output=True,
        check=True,
    )
    assert json.loads(said.stdout) == ["serve", *line]


def test_a_suite_sees_no_settings_of_its_caller(tmp_path: Path) -> None:
    seen = environment(tmp_path, {"CACHEWAY_POLICY": "random", "PATH": "/usr/bin"})
    assert "CACHEWAY_POLICY" not in seen
    assert seen["CACHEWAY_ADMIN_PORT"] == "0"
    assert seen["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_a_suite_is_found_in_either_repository(tmp_path: Path) -> None:
    with pytest.raises(SuiteMissing):
        suite_in(tmp_path)
    (tmp_path / "py_test" / "integration").mkdir(parents=True)
    assert suite_in(tmp_path) == tmp_path / "py_test" / "integration"
    (tmp_path / "py_test" / "integration_mock").mkdir()
    assert suite_in(tmp_path) == tmp_path / "py_test" / "integration_mock"
