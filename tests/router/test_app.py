"""The composition root: settings arrive where they count, and tasks run while the application serves."""

import logging
import subprocess
import sys

import pytest
from fakes.process import built, events, running, settings
from fakes.running import FAST_ENGINE, until

from loadtest.engine import EmulatedEngine
from policies import PROFILES
from router.app import GatewayProcess
from router.fleet import Health

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
    link = rules.links["b>a"]
    assert (link.bytes_per_s, link.rtt_s, link.cap_ratio, link.loss_ratio_max) == (1e10, 0.02, 0.5, 0.2)
    assert rules.site == "a"
    assert rules.kv_of("m").of(1000) == 1000 * 7 + 128 * 3 + 5


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


async def test_a_process_serves_without_redis_and_without_workers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="router"):
        async with running(await built(fleet={"worker_urls": ["http://127.0.0.1:1"]})) as client:
            answer = await client.get("/readiness")
    assert (answer.status_code, answer.json()["shared"]["warm"]) == (503, False)
    assert {"worker.missing", "gateway.started", "gateway.stopped"} <= set(events(caplog))


async def test_what_is_set_of_remote_prefill_and_links_shows_in_views_and_metrics() -> None:
    """One link of 80 Gbit/s, of which KV may take half; there are no reservations and no plans."""
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


def test_a_gateway_does_not_load_what_is_off() -> None:
    """In a separate process: other tests have loaded both. Each costs megabytes and a part of a second."""
    code = "import router.app, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for library in ("lightkube", "opentelemetry.sdk.trace"):
        assert not any(name.startswith(library) for name in ran.stdout.split())
