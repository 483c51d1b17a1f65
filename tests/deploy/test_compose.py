"""``deploy/compose.yaml``: Compose takes it, its commands work together, and what it mounts exists."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from fakes.composed import COMPOSE, DEPLOY, SERVICES, Composed, command_of, environment_of
from fakes.manifests import ROOT
from fakes.running import until_async

from router import cli
from router.tenants.admin_tokens import parsed_tokens

DOCKER_COMPOSE = shutil.which("docker-compose") or shutil.which(
    "docker-compose", path=str(Path(sys.executable).parent)
)

gateways = pytest.mark.parametrize("service", ["gateway-1", "gateway-2"])


@pytest.mark.skipif(DOCKER_COMPOSE is None, reason="docker-compose is not installed")
def test_compose_takes_the_file_from_the_root_of_a_checkout() -> None:
    assert DOCKER_COMPOSE is not None
    for command in ([], ["--file", "deploy/compose.yaml"]):
        done = subprocess.run(
            [DOCKER_COMPOSE, *command, "config", "--services"],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        assert set(done.stdout.split()) == SERVICES.keys()


@pytest.mark.timeout(300)
async def test_its_commands_make_a_fleet_that_answers_the_load(tmp_path: Path) -> None:
    """The services run in the order of their dependencies; the load runs six seconds, not minutes."""
    async with Composed(tmp_path) as composed, httpx.AsyncClient(trust_env=False, timeout=10) as client:
        (token,) = re.findall("^cw-.+$", await composed.run("tokens"), re.M)
        await composed.start("valkey")
        await composed.start("engines")
        for service in ("gateway-1", "gateway-2"):
            gateway = await composed.start(service)
            await gateway.wait_for_answer(f"{composed.url(service, 30000)}/readiness")
        load = await composed.start(
            "load", environment={"LOCUST_SPAWN_RATE": "4", "LOCUST_RUN_TIME": "6s", "LOCUST_USERS": "4"}
        )

        admin, metrics = composed.url("gateway-2", 29100), composed.url("gateway-1", 29000)
        assert (await client.get(f"{admin}/workers")).status_code == 401
        workers = await client.get(f"{admin}/workers", headers={"authorization": f"Bearer {token}"})
        assert len(workers.json()["workers"]) == 4
        console = await client.get(f"{admin}/")
        assert console.headers["content-type"].startswith("text/html")

        async def asked() -> bool:
            text = (await client.get(f"{metrics}/metrics")).text
            return bool(re.search(r"^cacheway_requests_total\{.*\} [1-9]", text, re.M))

        await until_async(asked, within_s=60)
        replicas = await client.get(f"{admin}/replicas", headers={"authorization": f"Bearer {token}"})
        assert len(replicas.json()["replicas"]) == 2
        await load.end()


async def test_the_token_is_made_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    composed, file = Composed(tmp_path), tmp_path / "tokens.yaml"
    (token,) = re.findall("^cw-.+$", await composed.run("tokens"), re.M)
    kept = file.read_bytes()
    holder = parsed_tokens(kept, "tokens.yaml").holder(token.encode(), 0.0)
    assert holder is not None
    assert holder.role == "write"
    assert token.encode() not in kept
    assert not file.with_name("tokens.yaml.made").exists()
    assert await composed.run("tokens") == ""
    assert file.read_bytes() == kept


@gateways
def test_the_command_line_of_a_gateway_is_valid(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = command_of(service)
    assert command[0] == "serve"
    variables = environment_of(service)
    assert cli.main(["config", *command[1:]], variables, serve=lambda _: 1, tools={}) == 0
    shown = capsys.readouterr().out
    assert "http://engines:30103" in shown
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


def test_all_ports_are_of_this_host_alone() -> None:
    """The file tells an operator who opens the data port with CACHEWAY_BIND to require a key."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == 6
    for port in ports:
        assert port.startswith(("127.0.0.1:", "${CACHEWAY_BIND:-127.0.0.1}:3000")), port
    assert "CACHEWAY_BIND=0.0.0.0) give the gateways --api-key-file" in (DEPLOY / "compose.yaml").read_text()


@gateways
def test_the_admin_api_asks_for_tokens(service: str) -> None:
    assert "--admin-tokens-file=/etc/cacheway/admin/tokens.yaml" in SERVICES[service]["command"]
    assert SERVICES[service]["volumes"] == ["tokens:/etc/cacheway/admin:ro"]
    assert SERVICES[service]["depends_on"]["tokens"] == {"condition": "service_completed_successfully"}


def test_only_replicas_reach_the_log() -> None:
    on_log = {name for name, service in SERVICES.items() if "log" in service.get("networks", ())}
    assert on_log == {"valkey", "gateway-1", "gateway-2"}
    assert COMPOSE["networks"]["log"] == {"internal": True}


def test_everything_that_is_mounted_exists() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), source
        for network in service.get("networks", ()):
            assert network in COMPOSE["networks"]
        if "build" in service:
            target = service["build"]["target"]
            assert f" AS {target}\n" in (ROOT / "Dockerfile").read_text()


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
