"""The composition root: settings arrive where they count, and tasks run while the application serves."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.running import FAST_ENGINE, until, until_async

from loadtest.engine import EmulatedEngine
from loadtest.processes import free_port
from policies import PROFILES, Circuit, FleetState, KvBytes, LinkRules, Placed, Waiting
from router.app import GatewayProcess
from router.fleet import Health
from router.proxy import Header
from router.settings import Settings

NOWHERE = "redis://127.0.0.1:1"


def settings(**sections: dict[str, Any]) -> Settings:
    return Settings.model_validate(sections)


class Unheard:
    """A sink of nobody."""

    def upstream_head(self, status: int, headers: list[Header], length: int | None) -> None: ...

    def upstream_data(self, data: bytes) -> None: ...

    def upstream_end(self) -> None: ...

    def upstream_failed(self, error: Exception) -> None: ...


async def built(**sections: dict[str, Any]) -> GatewayProcess:
    """A process that is not connected to anything."""
    return GatewayProcess(settings(**sections), redis_url=NOWHERE)


@contextlib.asynccontextmanager
async def running(process: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    """The process serves; a client of its admin API."""
    transport = httpx.ASGITransport(process.api)
    async with (
        process.api.router.lifespan_context(process.api),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]


# Settings.


async def test_workers_in_the_settings_are_workers() -> None:
    process = await built(fleet={"worker_urls": ["http://b:1", "http://a:1"]})
    assert [local.worker.worker_id for local in process.registry.all()] == ["a:1", "b:1"]
    assert {local.health for local in process.registry.all()} == {Health.STARTING}


async def test_prefill_and_decode_workers_in_the_settings_have_their_roles_and_labels() -> None:
    process = await built(
        fleet={"worker_urls": ["http://p:1"], "prefill": ["http://a:1 9 site=x"], "decode": ["http://d:1"]}
    )
    workers = {local.worker.worker_id: local.worker for local in process.registry.all()}
    assert {name: worker.role for name, worker in workers.items()} == {
        "a:1": "prefill",
        "d:1": "decode",
        "p:1": "plain",
    }
    assert workers["a:1"].labels == {"bootstrap_port": "9", "site": "x"}


async def test_links_and_what_kv_weighs_come_from_the_settings() -> None:
    """80 Gbit/s are ten thousand million bytes a second."""
    window = {"attention": "sliding_window", "window_tokens": 128, "window_bytes_per_token": 3}
    process = await built(
        fleet={
            "site": "a",
            "links": {"b>a": {"gbps": 80, "rtt_ms": 20, "cap_ratio": 0.5, "loss_ratio_max": 0.2}},
        },
        placement={"models": {"m": {"kv_bytes_per_token": 7, "state_bytes": 5, **window}}},
    )
    rules = process.fleet.rules
    assert rules.links == {"b>a": LinkRules(bytes_per_s=1e10, rtt_s=0.02, cap_ratio=0.5, loss_ratio_max=0.2)}
    assert rules.site == "a"
    assert rules.kv_bytes == {"m": KvBytes(7, 3, 128, 5)}


async def test_what_is_set_of_remote_prefill_and_links_shows_in_views_and_metrics() -> None:
    """One link of 80 Gbit/s, of which KV may take half; nothing is reserved and nobody has planned."""
    process = await built(
        fleet={"site": "a", "links": {"b>a": {"gbps": 80, "cap_ratio": 0.5}}},
        offload={"threshold_tokens": 7000, "scarce_above": 0.6, "abundant_below": 0.4, "wait_s_max": 3},
        placement={"models": {"*": {"kv_bytes_per_token": 7}}, "prefill_policy": "round_robin"},
    )
    assert process.gateway.placing.decider.prefill_policy.name == "round_robin"
    assert process.gateway.placing.decider.policy.name == "expected_cost"
    async with running(process) as client:
        offload = (await client.get("/offload")).json()
        (link,) = (await client.get("/links")).json()["links"]
        lines = (await client.get("/metrics")).text.splitlines()
    assert (offload["enabled"], offload["threshold_tokens"], offload["threshold_by"]) == (
        True,
        7000,
        "settings",
    )
    assert (link["state"], link["cap_bytes_per_s"]) == ("abundant", 5e9)
    assert any(line.startswith('cacheway_link_capacity_bytes_per_second{link="b>a"} 1') for line in lines)
    assert 'cacheway_link_state{link="b>a",state="abundant"} 1.0' in lines
    assert "cacheway_offload_threshold_tokens 7000.0" in lines
    off = await built(
        fleet={"site": "a", "links": {"b>a": {"gbps": 80}}}, offload={"disable_remote_prefill": True}
    )
    async with running(off) as client:
        assert (await client.get("/offload")).json()["enabled"] is False


async def test_a_link_whose_kv_nobody_has_weighed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    links = {"site": "a", "links": {"b>a": {"gbps": 80}}}
    await built(fleet=links, placement={"models": {"*": {"kv_bytes_per_token": 7}}})
    assert "links.unpriced" not in events(caplog)
    await built(fleet=links, placement={"models": {"m": {"attention": "linear"}}})
    assert "links.unpriced" in events(caplog)


async def test_what_the_fold_assumes_comes_from_the_settings() -> None:
    process = await built(
        placement={"block_tokens": 64, "prefill_tokens_per_s": 50_000, "tree_blocks_max": 1000},
        fleet={"worker_capacity_tokens": 4096},
        server={"request_timeout_s": 100},
    )
    rules = process.fleet.rules
    assert (rules.block_tokens, rules.capacity_tokens, rules.blocks_max) == (64, 4096, 1000)
    assert rules.lifetime_s_max > 100  # longer than any request may take
    assert rules.default_model.b_s == pytest.approx(1 / 50_000)
    assert (await built()).fleet.rules.default_model == PROFILES["default"]


async def test_a_worker_is_ejected_after_the_configured_failures() -> None:
    process = await built(fleet={"worker_urls": ["http://a:1"]}, reliability={"cb_failure_threshold": 2})
    (local,) = process.registry.all()
    for _ in range(2):
        assert process.registry.circuits.state(local) is Circuit.CLOSED
        process.registry.circuits.failed(local, 1, 1, "upstream_timeout")
    assert process.registry.circuits.state(local) is Circuit.OPEN


async def test_the_circuit_breaker_can_be_turned_off() -> None:
    sections: dict[str, Any] = {
        "fleet": {"worker_urls": ["http://a:1"]},
        "reliability": {"disable_circuit_breaker": True},
    }
    process = await built(**sections)
    (local,) = process.registry.all()
    for _ in range(1000):
        process.registry.circuits.failed(local, 1, 1, "upstream_timeout")
    assert process.registry.circuits.state(local) is Circuit.CLOSED


async def test_connections_to_workers_are_bounded_in_time_by_the_settings() -> None:
    process = await built(
        fleet={"worker_urls": ["http://a:1"]},
        upstream={"connect_timeout_s": 1, "first_byte_timeout_s": 2, "idle_timeout_s": 3},
    )
    timeouts = process.registry.all()[0].pool.timeouts
    assert (timeouts.connect_s, timeouts.first_byte_s, timeouts.idle_s) == (1, 2, 3)


async def test_as_many_requests_wait_for_a_worker_as_it_may_have_connections() -> None:
    process = await built(fleet={"worker_urls": ["http://127.0.0.1:1"]}, upstream={"connections_max": 3})
    pool = process.registry.all()[0].pool
    for _ in range(5):
        pool.send(b"GET", b"/", b"", b"", (), Unheard())
    assert pool.waiting == 3
    pool.close()


async def test_a_replica_has_a_name_of_its_own() -> None:
    """Also several processes on one host that share a name in their settings."""
    names = {(await built()).replica for _ in range(3)}
    assert len(names) == 3
    assert (await built(shared={"replica_id": "r1"})).replica == "r1"
    several = await built(shared={"replica_id": "r1"}, server={"workers": 2})
    assert several.replica == f"r1-{os.getpid()}"


# Life.


async def test_a_process_finds_its_workers_before_its_first_request(redis_url: str, namespace: str) -> None:
    async with EmulatedEngine(FAST_ENGINE) as engine:
        process = GatewayProcess(
            settings(fleet={"worker_urls": [engine.url]}, shared={"namespace": namespace}),
            redis_url=redis_url,
        )
        async with running(process) as client:
            assert (await client.get("/readiness")).json()["workers"] == {"healthy": 1, "total": 1}
            await until(lambda: process.shared.status.ready)
        assert process.registry.all()[0].pool.open == 0


async def test_a_role_that_replicas_share_wins_over_other_settings_and_is_said(
    redis_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first process learned something of its worker, which is newer than anybody's settings."""
    shared = {"namespace": namespace}
    first = GatewayProcess(
        settings(fleet={"prefill": ["http://127.0.0.1:1"]}, shared=shared), redis_url=redis_url
    )
    async with running(first):
        first.registry.change("127.0.0.1:1", capacity_tokens=5)
        await until(lambda: first.shared.status.ready and not first.shared.status.buffered_ops)
        assert "worker.role_kept" not in events(caplog)
        second = GatewayProcess(
            settings(fleet={"decode": ["http://127.0.0.1:1"]}, shared=shared), redis_url=redis_url
        )
        async with running(second):
            await until(lambda: "worker.role_kept" in events(caplog))
            known = second.registry.get("127.0.0.1:1")
            assert known is not None
            assert known.worker.role == "prefill"


async def test_a_process_serves_without_redis_and_without_workers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="router"):
        async with running(await built(fleet={"worker_urls": ["http://127.0.0.1:1"]})) as client:
            answer = await client.get("/readiness")
    assert (answer.status_code, answer.json()["shared"]["warm"]) == (503, False)
    assert {"worker.missing", "gateway.started", "gateway.stopped"} <= set(events(caplog))


async def test_a_worker_that_answers_nothing_does_not_hold_up_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kernel connects and nobody answers; a probe may take a minute, the start takes three seconds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = await built(fleet={"worker_urls": [url], "health_check_timeout_s": 60})
        async with asyncio.timeout(60), running(process) as client:
            assert (await client.get("/health")).status_code == 200
    assert "worker.missing" in events(caplog)


async def test_reservations_that_nobody_released_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    process = await built()
    process.fleet.apply(Placed("lost", 1, "a:1", "r9", 1, 1, 1))
    async with running(process):
        await until(lambda: "reservation.expired" in events(caplog))
    assert not process.fleet.loads.requests


class Broken(FleetState):
    """A fold with a mistake in it."""

    def __init__(self) -> None:
        super().__init__()
        self.collected = 0

    def collect(self, now_us: int) -> int:
        self.collected += 1
        raise ZeroDivisionError


async def test_what_others_had_is_given_up_when_redis_is_gone_for_long() -> None:
    """Their releases are not heard: without this no worker would ever have room again."""
    process = await built(shared={"heartbeat_ttl_s": 0.5})
    now_us = process.clock.now_us()
    process.fleet.apply(Placed("theirs", now_us, "w:80", "other", 10_000_000, 1, 1))
    process.fleet.apply(Placed("ours", now_us, "w:80", process.replica, 1, 1, 1))
    process.fleet.apply(Waiting("waits", now_us, "other", now_us, now_us, "m|", "", "normal/", 1, 1, 1))
    async with running(process):
        await until(lambda: len(process.fleet.loads.requests) < 2)
        assert list(process.fleet.loads.requests) == ["ours"]
        assert process.fleet.tickets.count == 0


async def test_a_task_that_fails_is_started_again_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    process = await built()
    process.fleet = broken = Broken()
    async with running(process):
        await until(lambda: broken.collected == 2)
    assert events(caplog).count("task.failed") >= 1


# Tenants.


async def test_fairness_knows_the_weights_of_classes_and_tenants(tmp_path: Path) -> None:
    """Classes among classes, tenants within their class; who is not in the file weighs 1."""
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {acme: {weight: 3}}")
    process = await built(tenancy={"keys_file": str(file)}, queue={"classes": {"high": 8, "normal": 4}})
    weight_of = process.fleet.fairness.weight_of
    assert [weight_of(name) for name in ("high", "normal", "gone")] == [8, 4, 4]
    assert [weight_of(name) for name in ("high/acme", "normal/acme", "high/other", "high/")] == [3, 3, 1, 1]
    assert (await built()).fleet.fairness.weight_of("high/acme") == 1


# Metrics.


async def test_what_is_read_rather_than_counted_is_in_the_metrics() -> None:
    process = await built(fleet={"worker_urls": ["http://a:1", "http://b:1"]})
    process.gateway.sending.exchanges = {object() for _ in range(7)}  # type: ignore[misc] # only counted
    process.fleet.apply(
        Placed("x", process.clock.now_us(), "a:1", "r9", 500_000, 600, 700, (bytes(range(16)),))
    )
    text = process.metrics.exposition()[0].decode()
    assert "cacheway_inflight_requests 7.0" in text
    assert 'cacheway_degraded{component="workers"} 1.0' in text
    assert 'cacheway_inflight_tokens{worker="a:1"} 700.0' in text
    assert 'cacheway_held_tokens{worker="a:1"} 512.0' in text
    assert 'cacheway_inflight_tokens{worker="b:1"} 0.0' in text
    for local in process.registry.all():
        process.registry.probed(local, ok=True, refused=False, detail="")
    assert 'cacheway_degraded{component="workers"} 0.0' in process.metrics.exposition()[0].decode()


async def test_metrics_may_have_a_listener_of_their_own() -> None:
    port = free_port()
    process = await built(observability={"prometheus_port": port, "prometheus_host": "127.0.0.1"})

    async def scraped() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return "cacheway_build_info" in (await other.get(f"http://127.0.0.1:{port}/metrics")).text
        return False

    async with running(process), httpx.AsyncClient(trust_env=False) as other:
        await until_async(scraped)
