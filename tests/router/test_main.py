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


def test_a_gateway_imports_nothing_that_it_never_uses() -> None:
    """Each process would hold 8 MB of it. With tracing on, the spans' libraries are there all the same."""
    script = (
        "import asyncio, sys, router.__main__ as program\n"
        "with program._importing():\n"
        "    import httpx, router.serving\n"
        "from router.app import GatewayProcess\n"
        "from router.process.starting import opened_spans\n"
        "from router.settings import Settings\n"
        "async def build(settings):\n"
        "    return GatewayProcess(settings, redis_url='redis://127.0.0.1:1/0')\n"
        "asyncio.run(build(Settings.model_validate({})))\n"
        "unused = 'rich', 'pygments', 'psutil', 'yaml', 'opentelemetry.sdk.metrics', 'pydantic.v1'\n"
        "print([name for name in unused if sys.modules.get(name)], callable(httpx.get))\n"
        "traced = Settings.model_validate({'observability': {'enable_trace': True}})\n"
        "print(opened_spans(traced.observability, 'r') is None)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.stdout, result.stderr) == ("[] True\nFalse\n", "")
