"""The program as a process: that the wiring holds."""

import subprocess
import sys

import pytest

from router.__main__ import TOOLS


def run(*argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "router", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={},
    )


def test_config_runs_as_a_process() -> None:
    result = run("config", "--port", "1001")
    assert (result.returncode, result.stderr) == (0, "")
    assert "# flag --port" in result.stdout


def test_wrong_settings_end_the_process_with_status_2_and_one_line() -> None:
    result = run("serve", "--port", "0")
    assert result.returncode == 2
    assert result.stderr == (
        "cacheway: flag --port: '0' is not allowed for server.port; give a whole number, 1 to 65535\n"
    )


@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_explains_itself(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A stray % in a help text is an error only when the help is shown."""
    run_tool, _ = TOOLS[tool]
    with pytest.raises(SystemExit) as ended:
        run_tool(["--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: cacheway {tool}")
