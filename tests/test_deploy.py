"""What `deploy/` starts is what the program understands."""

from pathlib import Path

import pytest
import yaml

from router import cli

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())


@pytest.mark.parametrize("service", ["gateway-1", "gateway-2"])
def test_the_command_line_of_a_gateway_is_valid(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = COMPOSE["services"][service]["command"]
    assert command[0] == "serve"
    assert cli.main(["config", *command[1:]], {}, serve=lambda _: 1, tools={}) == 0
    shown = capsys.readouterr().out
    assert "http://host.docker.internal:30101" in shown
    assert "redis://valkey:6379/0" in shown


def test_a_gateway_is_given_longer_to_stop_than_it_gives_its_streams(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["config"], {}, serve=lambda _: 1, tools={}) == 0
    (grace,) = [line for line in capsys.readouterr().out.splitlines() if "shutdown_grace_s" in line]
    allowed_s = float(COMPOSE["services"]["gateway-1"]["stop_grace_period"].removesuffix("s"))
    assert allowed_s > float(grace.split(":")[1].split("#")[0])


def test_the_image_has_what_the_build_copies() -> None:
    """Every path that the Dockerfile copies exists and is let through by .dockerignore."""
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
                assert source in allowed, source
