"""``deploy/compose.yaml``: what it starts is what the program understands, and what it mounts exists."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from router import cli

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]

gateways = pytest.mark.parametrize("service", ["gateway-1", "gateway-2"])


@gateways
def test_the_command_line_of_a_gateway_is_valid(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = SERVICES[service]["command"]
    assert command[0] == "serve"
    assert cli.main(["config", *command[1:]], {}, serve=lambda _: 1, tools={}) == 0
    shown = capsys.readouterr().out
    assert "http://host.docker.internal:30101" in shown
    assert "redis://valkey:6379/0" in shown


@gateways
def test_a_gateway_is_given_longer_to_stop_than_it_takes(
    service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config"], {}, serve=lambda _: 1, tools={}) == 0
    lines = capsys.readouterr().out.splitlines()
    needed_s = sum(
        float(line.split(":")[1].split("#")[0])
        for line in lines
        if line.strip().startswith(("shutdown_delay_s", "shutdown_grace_s"))
    )
    assert needed_s > 100
    assert float(SERVICES[service]["stop_grace_period"].removesuffix("s")) >= needed_s + 5


@gateways
def test_the_admin_api_is_open_to_this_host_only_and_asks_for_tokens(service: str) -> None:
    admin = [port for port in SERVICES[service]["ports"] if port.endswith(":29100")]
    assert admin
    assert all(port.startswith("127.0.0.1:") for port in admin)
    assert "--admin-tokens-file=/run/secrets/admin-tokens" in SERVICES[service]["command"]
    assert SERVICES[service]["secrets"] == ["admin-tokens"]
    assert "admin-tokens" in COMPOSE["secrets"]


def test_everything_that_is_mounted_exists() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), source
        for network in service["networks"]:
            assert network in COMPOSE["networks"]


def test_images_are_pinned() -> None:
    for name, service in SERVICES.items():
        _, colon, tag = service["image"].rpartition(":")
        assert colon, name
        assert tag != "latest", name


def test_prometheus_scrapes_every_gateway_where_its_metrics_are() -> None:
    config = yaml.safe_load((DEPLOY / "compose/prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    (static,) = job["static_configs"]
    assert set(static["targets"]) == {f"{name}:29000" for name in SERVICES if name.startswith("gateway")}
    assert "cacheway" in job["job_name"], "the alert CachewayDown looks for it"
    mounted = [volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]]
    assert {f"/etc/prometheus/{name}" for name in config["rule_files"]} < set(mounted)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    for source in ("compose/prometheus.yaml", "prometheus/rules.yaml", "prometheus/alerts.yaml"):
        shutil.copy(DEPLOY / source, tmp_path)
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_is_given_the_dashboards_and_where_to_ask() -> None:
    provider = yaml.safe_load((DEPLOY / "compose/grafana-dashboards.yaml").read_text())["providers"][0]
    mounts = [volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"]]
    assert ["./grafana", provider["options"]["path"]] in mounts
    source = yaml.safe_load((DEPLOY / "compose/grafana-datasource.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
