"""The audit records every change with its author, content and result."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.admin import Setup, code
from fastapi import FastAPI, Request

from policies import Audited
from router.admin import make_admin_api
from router.admin.audit import DETAIL_CHARS_MAX, note_change
from router.tenants import TokensWatch
from router.tenants.keys import digest_of


def audited(setup: Setup) -> list[Audited]:
    return list(setup.shared.fleet.audit)


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if getattr(record, "event", "").startswith("admin.")]


async def test_a_change_is_logged_counted_and_told_to_all_replicas(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.add("a")
    with caplog.at_level(logging.INFO, logger="router.admin"):
        await setup.client.delete("/workers/a:80", headers={"x-request-id": "mine"})
    (op,) = audited(setup)
    assert (op.actor, op.action, op.target, op.status, op.request_id, op.replica) == (
        *("anonymous", "DELETE /workers/{worker_id}", "a:80", 202, "mine", "r1"),
    )
    assert (op.client, op.unix_us) == ("127.0.0.1:123", 10**15)
    (event,) = events(caplog)
    assert (event["event"], event["actor"], event["target"]) == ("admin.changed", "anonymous", "a:80")
    assert b'cacheway_admin_changes_total{outcome="changed"} 1.0' in setup.bench.metrics.exposition()[0]


async def test_what_only_reads_is_no_change(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    for path in ("/workers", "/audit", "/health"):
        await setup.client.get(path)
    await setup.client.head("/workers")
    await setup.client.get("/list_encoder_urls")
    assert audited(setup) == []
    assert events(caplog) == []


async def test_who_is_not_let_in_and_what_fails_is_not_told_to_others(
    locked: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the replica that was asked logs it: strangers cannot fill the logs of the others."""
    await locked.client.delete("/workers/a:80")
    await locked.client.delete("/workers/a:80", headers={"authorization": "Bearer ours"})
    for headers in ({"authorization": "Bearer ours"}, {}):
        await locked.client.put("/nowhere", headers=headers)  # no such path could change anything
    assert audited(locked) == []
    said = [(event["event"], event["actor"], event["status"]) for event in events(caplog)]
    assert said == [
        ("admin.refused", "", 401),
        ("admin.failed", "api_key", 404),
    ]
    metrics = locked.bench.metrics.exposition()[0]
    assert b'outcome="refused"} 1.0' in metrics
    assert b'outcome="failed"} 1.0' in metrics


async def test_posts_to_paths_that_do_not_exist_fill_no_audit(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    """They are typos of any client."""
    for path in ("/v1/messages/counts", "/nowhere", "/admin/nowhere"):
        assert (await setup.client.post(path, json={})).status_code == 404
    assert events(caplog) == []


async def test_a_reader_who_would_change_something_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(f"tokens: {{ann: {{role: read, hash: 'sha256:{digest_of(b'token').hex()}'}}}}")
    tokens = TokensWatch(str(file))
    tokens.load()
    setup = Setup()
    api = make_admin_api(replace(setup.parts, tokens=tokens), setup.console)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
        answer = await client.delete("/workers/a:80", headers={"authorization": "Bearer token"})
    assert answer.status_code == 403
    (event,) = events(caplog)
    assert (event["event"], event["actor"]) == ("admin.refused", "ann")


def changing(api: FastAPI) -> None:
    @api.post("/change")
    async def change(request: Request, size: int, made: bool = True) -> None:
        note_change(request, target="some", detail={"text": "x" * size}, made=made)

    @api.post("/fail")
    async def fail() -> None:
        raise ZeroDivisionError


async def test_a_handler_says_what_it_changed(setup: Setup) -> None:
    changing(setup.api)
    await setup.client.post("/change?size=3")
    await setup.client.post("/change?size=3&made=false")
    await setup.client.post(f"/change?size={DETAIL_CHARS_MAX}")
    short, long = audited(setup)
    assert (short.target, json.loads(short.detail)) == ("some", {"text": "xxx"})
    assert json.loads(long.detail) == {"left_out": "it is too long"}


async def test_a_mistake_of_ours_is_a_failed_change(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    changing(setup.api)
    transport = httpx.ASGITransport(setup.api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.post("/fail")).status_code == 500
    (event,) = events(caplog)
    assert (event["event"], event["status"], event["action"]) == ("admin.failed", 500, "POST /fail")


async def test_the_newest_changes_of_all_replicas_come_first(setup: Setup) -> None:
    setup.shared.publish(
        Audited(5, "r2", "q", "ann", "10.0.0.1:7", "PATCH /settings", "queue.size", 200, '{"to":7}', 9500000)
    )
    setup.add("a")
    await setup.client.delete("/workers/a:80")
    told = (await setup.client.get("/audit")).json()
    assert [change["action"] for change in told["changes"]] == [
        "DELETE /workers/{worker_id}",
        "PATCH /settings",
    ]
    assert told["total"] == 2
    assert told["changes"][1] == {
        "at_unix_s": 9.5,
        "replica": "r2",
        "actor": "ann",
        "client": "10.0.0.1:7",
        "action": "PATCH /settings",
        "target": "queue.size",
        "status": 200,
        "request_id": "q",
        "detail": {"to": 7},
    }
    assert len((await setup.client.get("/audit?limit=1")).json()["changes"]) == 1


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
async def test_a_limit_has_bounds(setup: Setup, limit: str) -> None:
    answer = await setup.client.get(f"/audit?limit={limit}")
    assert (answer.status_code, code(answer)) == (400, "invalid_value")
