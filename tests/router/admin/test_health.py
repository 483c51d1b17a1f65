"""What probes and scrapers are told."""

from dataclasses import replace

import pytest
from fakes.admin import WELL, Setup


@pytest.mark.parametrize("path", ["/health", "/liveness"])
async def test_a_process_that_answers_is_alive(setup: Setup, path: str) -> None:
    answer = await setup.client.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/readiness", "/health_generate"])
async def test_a_replica_is_ready_while_a_worker_takes_requests(setup: Setup, path: str) -> None:
    assert (await setup.client.get(path)).status_code == 503
    a, _ = setup.add("a", "b")
    answer = await setup.client.get(path)
    assert (answer.status_code, answer.json()["workers"]) == (200, {"healthy": 2, "total": 2})
    setup.registry.probed(a, ok=False, refused=True, detail="")
    assert (await setup.client.get(path)).json()["workers"] == {"healthy": 1, "total": 2}
    setup.registry.change("b:80", draining=True)
    answer = await setup.client.get(path)
    assert (answer.status_code, answer.json()["status"]) == (503, "no_healthy_worker")


async def test_a_replica_that_shuts_down_is_alive_and_not_ready(setup: Setup) -> None:
    setup.add("a")
    setup.shutting_down = True
    answer = await setup.client.get("/readiness")
    assert (answer.status_code, answer.json()["status"]) == (503, "shutting_down")
    assert (await setup.client.get("/liveness")).status_code == 200


async def test_a_lost_redis_is_said_and_does_not_make_a_replica_unready(setup: Setup) -> None:
    setup.add("a")
    setup.status = replace(
        WELL,
        connected=False,
        degraded_reason="unreachable",
        buffered_ops=3,
        dropped_ops=2,
        skipped_ops={"invalid": 1},
    )
    answer = await setup.client.get("/readiness")
    shared = answer.json()["shared"]
    assert (answer.status_code, shared["degraded"]) == (200, "unreachable")
    assert (shared["buffered_ops"], shared["dropped_ops"], shared["skipped_ops"]) == (3, 2, 1)


async def test_readiness_says_what_is_degraded_in_words(setup: Setup) -> None:
    setup.add("a")
    setup.degraded = ("the file of keys cannot be used",)
    answer = await setup.client.get("/readiness")
    assert answer.json()["degraded"] == ["the file of keys cannot be used"]
    assert (answer.status_code, answer.json()["version"]) == (200, "1.2.3")


async def test_metrics_are_prometheus_text(setup: Setup) -> None:
    answer = await setup.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "cacheway_build_info" in answer.text
