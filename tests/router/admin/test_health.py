"""Answers to probes and scrapers."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fakes.admin import WELL, Setup
from fastapi import FastAPI

from router.admin import AdminParts, make_admin_api, make_api, make_data_api
from router.engines import Description
from router.fleet import ServedModel
from router.shared import Vitals
from router.tenants import TokensWatch
from router.tenants.keys import digest_of


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


@pytest.mark.parametrize("path", ["/health", "/liveness", "/readiness", "/health_generate"])
async def test_probes_may_ask_for_the_head_alone(setup: Setup, path: str) -> None:
    setup.add("a")
    assert (await setup.client.head(path)).status_code == 200


async def test_a_replica_is_not_ready_while_no_pair_is_possible(setup: Setup) -> None:
    prefill, decode = setup.add("p", "d")
    setup.registry.change("p:80", role="prefill", labels={"handover": "sglang"})
    setup.registry.change("d:80", role="decode", labels={})
    answer = await setup.client.get("/readiness")
    assert (answer.status_code, answer.json()["status"]) == (503, "no_pair")
    setup.registry.change("d:80", labels={"handover": "sglang"})
    assert (await setup.client.get("/readiness")).status_code == 200
    setup.registry.described(prefill, (ServedModel("m"),), Description())
    setup.registry.described(decode, (ServedModel("n"),), Description())
    assert (await setup.client.get("/readiness")).json()["status"] == "no_pair"


async def test_a_replica_that_shuts_down_is_alive_and_not_ready(setup: Setup) -> None:
    setup.add("a")
    setup.ending.begin()
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


TOLD_TO_OPERATORS = {"replica", "version", "degraded", "settings_refused"}


def told(answer: httpx.Response) -> set[str]:
    """Return the fields of a readiness answer beyond status and counts."""
    names = set(answer.json()) | {f"shared.{name}" for name in answer.json()["shared"]}
    return names & (TOLD_TO_OPERATORS | {"shared.degraded", "shared.replicas"})


def apis(parts: AdminParts, setup: Setup) -> list[FastAPI]:
    """Return the APIs of one port for all, and of the two separate ports."""
    whole = make_api(parts, setup.console)
    return [whole, make_data_api(parts, None), make_admin_api(parts, setup.console)]


EVERYTHING = TOLD_TO_OPERATORS | {"shared.degraded", "shared.replicas"}


async def test_where_there_are_keys_strangers_and_tenants_are_told_a_status_and_counts(
    locked: Setup,
) -> None:
    locked.add("a")
    locked.degraded = ("the shared log: cannot reach redis-0.internal", "pods of app=engines")
    for path in ("/readiness", "/health_generate"):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "sk-acme"}):
            answer = await locked.client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["status"]) == (200, "ready")
            assert answer.json()["workers"] == {"healthy": 1, "total": 1}
            assert answer.json()["degraded_count"] == 2
            assert answer.json()["shared"]["warm"] is True
            assert told(answer) == set()
            for name in ("redis-0", "engines", "r1", "1.2.3"):
                assert name not in answer.text


async def test_the_gateways_own_key_and_those_without_any_are_told_all(setup: Setup, locked: Setup) -> None:
    answer = await locked.client.get("/readiness", headers={"authorization": "Bearer ours"})
    assert told(answer) == EVERYTHING
    assert told(await setup.client.get("/readiness")) == EVERYTHING


async def test_where_only_operators_have_tokens_one_of_those_is_needed(setup: Setup, tmp_path: Path) -> None:
    """The base of deploy/kubernetes: any client may ask models, and gets no facts about the fleet."""
    file = tmp_path / "tokens.yaml"
    digest = digest_of(b"the-token").hex()
    file.write_text(f"tokens: {{reader: {{role: read, hash: 'sha256:{digest}'}}}}")
    tokens = TokensWatch(str(file))
    tokens.load()
    parts = replace(setup.parts, tokens=tokens)
    for api in (
        make_api(parts, setup.console),
        make_data_api(parts, None),
        make_admin_api(parts, setup.console),
    ):
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            assert told(await client.get("/readiness")) == set()
            answer = await client.get("/readiness", headers={"authorization": "Bearer the-token"})
            assert told(answer) == EVERYTHING


async def test_metrics_leave_the_data_port_if_they_have_one_of_their_own() -> None:
    setup = Setup(observability={"prometheus_port": 29000})
    parts = setup.parts
    statuses = []
    for api in (
        make_api(parts, setup.console),
        make_data_api(parts, None),
        make_admin_api(parts, setup.console),
    ):
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            answer = await client.get("/metrics")
            statuses.append(answer.status_code)
            assert (answer.status_code == 200) is ("cacheway_" in answer.text)
            assert "/metrics" not in api.openapi()["paths"] or answer.status_code == 200
    assert statuses == [404, 404, 200]


async def test_each_replica_is_shown_as_it_says_it_is(setup: Setup) -> None:
    said = Vitals(version="1", address="a:1", at_unix_s=1e9 - 2, requests={"completed": 5})
    setup.vitals = {"r1": said, "r2": None}
    told = (await setup.client.get("/replicas")).json()
    assert (told["asked"], told["shared"], told["degraded"], told["total"]) == ("r1", True, None, 2)
    known, unknown = told["replicas"]
    assert (known["replica"], known["known"], known["age_s"], known["address"]) == ("r1", True, 2.0, "a:1")
    assert known["requests"] == {"completed": 5}
    assert (unknown["replica"], unknown["known"], unknown["age_s"]) == ("r2", False, None)
    assert unknown.keys() == known.keys()
    assert (unknown["ready"], unknown["version"], unknown["started_unix_s"]) == (None, None, None)


async def test_without_redis_the_answer_says_so(setup: Setup) -> None:
    setup.status = replace(WELL, connected=False, degraded_reason="unreachable")
    setup.vitals = {"r1": Vitals()}
    told = (await setup.client.get("/replicas")).json()
    assert (told["shared"], told["degraded"], told["total"]) == (False, "unreachable", 1)
