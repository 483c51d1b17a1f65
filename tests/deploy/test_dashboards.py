"""``deploy/grafana`` and the rules, on a real Prometheus that scrapes a real fleet.

Grafana itself is not run: what it would ask is asked here, and where it would draw is checked in numbers.
"""

import asyncio
import contextlib
import itertools
import json
import math
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fakes.running import Fleet, RunningGateway, until, until_async

from deploy.panels import COLUMNS, FILTER, HERE, Dashboard, Query, dashboard_json, dashboards
from loadtest.engine import EngineSettings
from loadtest.engine.handover import HandoverSettings
from loadtest.engine.link.server import LinkServer
from loadtest.processes import free_port
from router.fleet import Health
from router.metric_families import FAMILIES

ROOT = Path(__file__).parents[2]

BOARDS = {board.name: board for board in dashboards()}

KUBELET = {"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"}
"""Metrics that are not ours."""

EVERYWHERE = {"namespace", "instance", "le", "pod", "container"}
"""Labels that Prometheus adds, or that every histogram has."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed: nothing is asked of it"
)

every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def panels(board: Dashboard) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads((HERE / f"{board.name}.json").read_text())["panels"]
    return read


@every_board
def test_no_panel_lies_on_another_or_leaves_the_page(board: Dashboard) -> None:
    seen = panels(board)
    assert len({panel["id"] for panel in seen}) == len(seen)
    for panel in seen:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS
        assert place["h"] >= (1 if panel["type"] == "row" else 4)
    for one, other in itertools.combinations([panel["gridPos"] for panel in seen], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@every_board
def test_each_row_of_panels_fills_the_page(board: Dashboard) -> None:
    """A gap is a slip; the last line of a row may be short."""
    lines: dict[int, int] = {}
    for panel in panels(board):
        lines[panel["gridPos"]["y"]] = lines.get(panel["gridPos"]["y"], 0) + panel["gridPos"]["w"]
    assert set(lines.values()) == {COLUMNS}


@every_board
def test_each_panel_says_what_it_shows(board: Dashboard) -> None:
    titles = [(row.title, panel.title) for row in board.rows for panel in row.panels]
    assert len(set(titles)) == len(titles)
    for row in board.rows:
        for panel in row.panels:
            assert panel.title[0].isupper()
            assert len(panel.title) <= 40
            assert panel.about.endswith(".")
            assert panel.queries
            assert len(panel.queries) == 1 or all(query.legend for query in panel.queries)
            assert (panel.red_above is None) or (panel.red_below is None)


@every_board
def test_the_data_source_and_the_fleet_are_chosen_at_the_top(board: Dashboard) -> None:
    built = dashboard_json(board)
    variables = {each["name"] for each in built["templating"]["list"]}
    for panel in built["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'namespace=~"$namespace"' in target["expr"]
            assert set(re.findall(r"\$([a-z]\w+)", target["expr"])) <= variables
    assert variables == {"datasource", "namespace", *(each.name for each in board.variables)}


@every_board
def test_metrics_and_labels_that_a_dashboard_asks_for_exist(board: Dashboard) -> None:
    for query in queries(board):
        known: set[str] = set(EVERYWHERE)
        for name, selector in re.findall(r"\b((?:cacheway|container)_[a-z0-9_]+)(\{[^}]*\})?", query.expr):
            if name in KUBELET:
                continue
            labels = labels_of(name)
            known |= labels
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= labels | EVERYWHERE, query.expr
        for grouped in re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", query.expr):
            assert {label.strip() for label in grouped.split(",")} <= known, query.expr
    for variable in board.variables:
        assert variable.name in labels_of(variable.metric)


def queries(board: Dashboard) -> Iterator[Query]:
    for row in board.rows:
        for panel in row.panels:
            yield from panel.queries


def labels_of(series: str) -> set[str]:
    """Return the family of the metric that a series belongs to."""
    for family in FAMILIES:
        parts = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        if series in {family.exposed_name + part for part in parts}:
            return set(family.labels)
    raise AssertionError(f"there is no metric {series}")


class Prometheus:
    """A real one, and what it answers."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, expr: str) -> list[float]:
        """The values that an expression has now."""
        answer = (await self._client.get("/api/v1/query", params={"query": expr})).json()
        assert answer["status"] == "success", f"{expr}\n{answer.get('error')}"
        return [float(sample["value"][1]) for sample in answer["data"]["result"]]

    async def has_answer(self, expr: str) -> bool:
        """True if an expression has a number now."""
        return any(map(math.isfinite, await self.ask(expr)))

    async def unwell(self) -> list[str]:
        """Rules that could not be worked out, with the error, or have not been yet."""
        groups = (await self._client.get("/api/v1/rules")).json()["data"]["groups"]
        return [
            f"{rule['name']}: {rule.get('lastError', rule['health'])}"
            for group in groups
            for rule in group["rules"]
            if rule["health"] != "ok"
        ]


@contextlib.asynccontextmanager
async def prometheus(folder: Path, targets: list[str]) -> AsyncIterator[Prometheus]:
    """Run one that scrapes some gateways once a second, time enough for a busy machine, with our rules."""
    port = free_port()
    files = []
    for name in ("rules.yaml", "alerts.yaml"):
        content = yaml.safe_load((ROOT / "deploy/prometheus" / name).read_text())
        for group in content["groups"]:
            group["interval"] = "1s"
        (folder / name).write_text(yaml.safe_dump(content))
        files.append(str(folder / name))
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": files,
        "scrape_configs": [
            {
                "job_name": "cacheway",
                "static_configs": [{"targets": targets, "labels": {"namespace": "fleet"}}],
            }
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:

            async def ready() -> bool:
                assert process.returncode is None, (folder / "prometheus.log").read_text()
                with contextlib.suppress(httpx.HTTPError):
                    return (await client.get("/-/ready")).status_code == 200
                return False

            await until_async(ready, 30)
            yield Prometheus(client)
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def link() -> AsyncIterator[LinkServer]:
    server = LinkServer(gbps=100, rtt_ms=2)
    await server.open()
    yield server
    server.close()
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def fleet(redis_url: str, namespace: str, link: LinkServer) -> AsyncIterator[Fleet]:
    del link  # it outlives the engines that use it
    async with contextlib.AsyncExitStack() as stack:
        yield Fleet(redis_url, namespace, stack)


async def two_sites(fleet: Fleet, link: LinkServer) -> list[RunningGateway]:
    """Two replicas, two plain workers, a prefill worker in each of two sites, a decode worker."""
    sections = {
        "fleet": {"site": "dc1", "links": {"dc2>dc1": {"gbps": 100, "rtt_ms": 2}}},
        "placement": {"models": {"*": {"kv_bytes_per_token": 327_680}}},
        "offload": {"threshold_tokens": 1000},
        "admission": {"engine_metrics_interval_s": 0.2},
    }
    replicas = [await fleet.gateway(**sections) for _ in range(2)]
    parts: tuple[tuple[Any, str], ...] = (
        *(("plain", "dc1"), ("plain", "dc1"), ("decode", "dc1")),
        *(("prefill", "dc1"), ("prefill", "dc2")),
    )
    for part, site in parts:
        handover = None
        if part != "plain":
            kv_link = link.url if site == "dc2" else ""
            handover = HandoverSettings(
                protocol="nixl", part=part, heartbeat_s=0.5, lease_s=3.0, waiting_s=3.0, kv_link=kv_link
            )
        engine = await fleet.engine(
            EngineSettings(
                prefill_tokens_per_s=200_000 if site == "dc2" else 20_000,
                prefill_base_ms=1.0,
                tpot_ms=0.5,
                block_tokens=16,
                dialect="vllm",
                handover=handover,
            )
        )
        labels = {"site": site, "worker_class": f"{part}-{site}"}
        worker_id = replicas[0].process.registry.add(engine.url, role=part, labels=labels)
        for replica in replicas:
            registry = replica.process.registry
            await until(
                lambda registry=registry, worker_id=worker_id: (  # type: ignore[misc]
                    (local := registry.get(worker_id)) and local.health is Health.HEALTHY and local.models
                )
            )
    return replicas


TURNS = 12
"""Turns of a conversation; then another one begins."""


async def talk(replicas: list[RunningGateway], turns: Iterator[int], count: int) -> None:
    """The next turns of conversations that grow, short and long ones, streamed and not."""
    for begun, turn in (divmod(next(turns), TURNS) for _ in range(count)):
        asked = []
        for number, replica in enumerate(replicas * 3):
            words = "word " * ((2_000 if number % 3 == 0 else 200) + 100 * turn)
            body = {
                "model": "emulated",
                "max_tokens": 8,
                "stream": number % 2 == 0,
                "messages": [{"role": "user", "content": f"{number} {begun} {words}"}],
                **({"stream_options": {"include_usage": True}} if number % 2 == 0 else {}),
            }
            asked.append(replica.client.post("/v1/chat/completions", json=body))
        for answer in await asyncio.gather(*asked):
            assert answer.status_code == 200, answer.text


@needs_prometheus
async def test_what_dashboards_and_rules_ask_has_answers(
    tmp_path: Path, fleet: Fleet, link: LinkServer
) -> None:
    """Every expression is understood; those that any fleet with traffic has data for have some."""
    replicas = await two_sites(fleet, link)
    targets = [replica.url.removeprefix("http://") for replica in replicas]
    async with prometheus(tmp_path, targets) as server:
        await until_async(lambda: _all_up(server, len(targets)))
        rare, wanted = (
            {
                asked_by_grafana(query.expr.replace("{F", "{" + FILTER))
                for board in BOARDS.values()
                for query in queries(board)
                if query.rare is kind
            }
            for kind in (True, False)
        )
        recorded = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())
        wanted |= {rule["record"] for group in recorded["groups"] for rule in group["rules"]}
        turns = itertools.count()
        filled: set[str] = set()

        async def all_have_answers() -> bool:
            """Talk on and ask again: a busy machine misses scrapes, and rates need traffic between two."""
            await talk(replicas, turns, 3)
            filled.update([expr for expr in sorted(wanted - filled) if await server.has_answer(expr)])
            return wanted <= filled

        with contextlib.suppress(TimeoutError):
            await until_async(all_have_answers)
        assert wanted - filled == set()
        filled.update([expr for expr in sorted(rare) if await server.has_answer(expr)])
        await until_async(lambda: _all_well(server))
        with_pairs = [expr for expr in filled if "handover" in expr or "link" in expr]
        assert len(with_pairs) >= 5, "links and hand-overs of a fleet that has them"
        assert await server.ask('count(ALERTS{alertstate="firing", severity="critical"})') == []


async def _all_well(server: Prometheus) -> bool:
    return not await server.unwell()


async def _all_up(server: Prometheus, count: int) -> bool:
    return await server.ask("sum(up)") == [count]


def asked_by_grafana(expr: str) -> str:
    """An expression with its variables as they are at first: all."""
    return re.sub(r"\$[a-z]\w+", ".*", expr.replace("$__rate_interval", "1m"))
