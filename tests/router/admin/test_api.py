"""The admin API over scripted workers: both dialects, and what an operator reads there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fakes.gateway import FakeShared, VirtualTime, registry
from fakes.queue_ports import queue_ports

from policies import Circuit, CircuitSet, Forget, Insert, Placed, Started
from router.admin import AdminPorts, make_api
from router.fleet import LocalWorker, ServedModel
from router.metrics import Metrics
from router.shared import LogStatus
from router.tenants import Door, KeysWatch

WELL = LogStatus(
    connected=True,
    degraded_reason=None,
    lag_s=0.0,
    snapshot_age_s=1.0,
    buffered_ops=0,
    dropped_ops=0,
    skipped_ops=0,
    replicas=("r1",),
    ready=True,
    warming=None,
)


class Setup:
    """An API without a gateway behind it; the test writes the workers' answers."""

    def __init__(self, *, admin_key: bytes | None = None, keys: KeysWatch | None = None) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared()
        self.registry = registry(self.shared, self.time)
        self.status = WELL
        self.shutting_down = False
        self.asked: list[str] = []
        self.answer: Callable[[httpx.Request], Any] = lambda _: httpx.Response(200)
        self.workers_client = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))
        self.api = make_api(
            AdminPorts(
                version="1.2.3",
                replica="r1",
                fleet=self.shared.fleet,
                registry=self.registry,
                publish=self.shared.publish,
                now_us=self.time.clock.now_us,
                log_status=lambda: self.status,
                request_id_of=lambda headers: dict(headers).get(b"x-request-id", b"made"),
                door=Door(
                    admin_key=admin_key,
                    tenant_header=b"x-tenant-id",
                    keys=None if keys is None else keys.keyring,
                ),
                keys=keys,
                metrics=Metrics("1.2.3"),
                client=self.workers_client,
                shutting_down=lambda: self.shutting_down,
                queue=queue_ports(self.shared, self.registry, self.time),
            )
        )
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.api), base_url="http://gateway")

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.host}{request.url.path}")
        answer = self.answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer  # type: ignore[no-any-return]

    def add(self, *names: str) -> list[LocalWorker]:
        """Add healthy workers."""
        locals_ = []
        for name in names:
            local = self.registry.get(self.registry.add(f"http://{name}"))
            assert local is not None
            self.registry.probed(local, ok=True, refused=False, detail="as told")
            locals_.append(local)
        return locals_


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    async with setup.client, setup.workers_client:
        yield setup


@pytest.fixture
async def locked() -> AsyncIterator[Setup]:
    setup = Setup(admin_key=b"ours")
    async with setup.client, setup.workers_client:
        yield setup


def code(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return str(error["code"])


# Health.


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
        WELL, connected=False, degraded_reason="unreachable", buffered_ops=3, dropped_ops=2, skipped_ops=1
    )
    answer = await setup.client.get("/readiness")
    shared = answer.json()["shared"]
    assert (answer.status_code, shared["degraded"]) == (200, "unreachable")
    assert (shared["buffered_ops"], shared["dropped_ops"], shared["skipped_ops"]) == (3, 2, 1)


async def test_metrics_are_prometheus_text(setup: Setup) -> None:
    answer = await setup.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "cacheway_build_info" in answer.text


# The key.


@pytest.mark.parametrize("path", ["/health", "/liveness", "/readiness", "/metrics"])
async def test_probes_and_scrapers_need_no_key(locked: Setup, path: str) -> None:
    assert (await locked.client.get(path)).status_code != 401


@pytest.mark.parametrize("path", ["/workers", "/v1/models", "/openapi.json", "/docs", "/nowhere", "/health/"])
async def test_everything_else_asks_for_the_key(locked: Setup, path: str) -> None:
    answer = await locked.client.get(path)
    assert (answer.status_code, code(answer)) == (401, "invalid_api_key")
    assert (await locked.client.get(path, headers={"authorization": "Bearer ours"})).status_code != 401


async def test_every_answer_carries_the_requests_id(locked: Setup) -> None:
    for path in ("/health", "/workers", "/nowhere"):
        answer = await locked.client.get(path, headers={"x-request-id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["x-cacheway-worker"] == "none"


# Errors.


async def test_errors_have_the_openai_shape(setup: Setup) -> None:
    assert code(await setup.client.get("/nowhere")) == "not_found"
    wrong = await setup.client.put("/health")
    assert (code(wrong), wrong.status_code, wrong.headers["allow"]) == ("method_not_allowed", 405, "GET")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"{}", "url"),
        (b'{"url": "http://a", "capacity_tokens": -1}', "capacity_tokens"),
        (b'{"url": "http://a", "worker_type": "prefill"}', "worker_type"),
        (b'{"url": "http://a", "labels": {"zone": 1}}', "labels.zone"),
    ],
)
async def test_a_body_that_is_wrong_says_where(setup: Setup, body: bytes, param: str | None) -> None:
    answer = await setup.client.post("/workers", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, code(answer)) == (400, "invalid_value")
    assert answer.json()["error"]["param"] == param


# Workers.


async def test_a_worker_is_added_changed_and_removed(setup: Setup) -> None:
    spec = {"url": "http://a:1/", "capacity_tokens": 9, "labels": {"worker_class": "h200"}, "priority": 3}
    added = await setup.client.post("/workers", json=spec)
    assert (added.status_code, added.json()["worker_id"]) == (202, "a:1")
    one = (await setup.client.get(added.json()["location"])).json()
    assert (one["url"], one["state"], one["is_healthy"]) == ("http://a:1", "starting", False)
    assert (one["capacity_tokens"], one["labels"]) == (9, {"worker_class": "h200"})

    changed = await setup.client.put("/workers/a:1", json={"draining": True})
    assert changed.status_code == 202
    one = (await setup.client.get("/workers/a:1")).json()
    assert (one["state"], one["capacity_tokens"]) == ("draining", 9)

    assert (await setup.client.delete("/workers/a:1")).status_code == 202
    assert (await setup.client.get("/workers")).json() == {"workers": [], "total": 0}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_worker_that_is_not_there_is_not_found_with_those_that_are(setup: Setup, method: str) -> None:
    setup.add("a")
    answer = await setup.client.request(method, "/workers/b:80", json={} if method == "PUT" else None)
    assert (answer.status_code, code(answer)) == (404, "worker_not_found")
    assert "known: a:80" in answer.json()["error"]["message"]


async def test_a_misspelt_change_is_refused(setup: Setup) -> None:
    setup.add("a")
    answer = await setup.client.put("/workers/a:80", json={"drain": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "drain")


async def test_a_url_that_is_none_is_refused(setup: Setup) -> None:
    answer = await setup.client.post("/workers", json={"url": "http://a..b"})
    assert (answer.status_code, code(answer)) == (400, "invalid_worker_url")
    assert setup.shared.ops == []


async def test_a_worker_with_a_base_path_has_it_in_its_id(setup: Setup) -> None:
    setup.add("a/base")
    assert (await setup.client.get("/workers/a:80/base")).json()["url"] == "http://a:80/base"


async def test_a_workers_load_and_cache_are_shown(setup: Setup) -> None:
    """Two blocks of 256 tokens held, one request of 700 tokens with half a second of prefill."""
    (a,) = setup.add("a")
    now_us = setup.time.clock.now_us()
    path = bytes(range(1, 17))
    setup.shared.publish(Insert("a:80", path, now_us))
    setup.shared.publish(Placed("x", now_us, "a:80", "r2", 500_000, 600, 700, (path,)))
    setup.registry.described(a, (ServedModel("m"),), "vllm", 1000)
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["held_tokens"], one["inflight_requests"], one["inflight_tokens"]) == (512, 1, 700)
    assert one["backlog_s"] == pytest.approx(0.5, abs=0.01)
    assert (one["engine"], one["models"], one["circuit"]) == ("vllm", ["m"], "closed")
    assert one["connections"] == {"open": 0, "idle": 0}
    loads = (await setup.client.get("/get_loads")).json()
    assert loads == {"loads": [{"worker": "http://a:80", "load": 1, "tokens": 700}]}


async def test_a_workers_circuit_start_and_share_are_shown(setup: Setup) -> None:
    """Ejected by a sibling for 60 s; restarted four of the ten seconds ago that a slow start takes."""
    setup.add("a")
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["circuit"], one["circuit_by"], one["circuit_wait_s"]) == ("closed", None, 0.0)
    assert (one["share"], one["started_unix_s"]) == (1.0, None)
    setup.registry._ramp_us = 10e6
    now_us = setup.time.clock.now_us()
    setup.shared.publish(CircuitSet("a:80", now_us, "r2", Circuit.OPEN, now_us + 60_000_000))
    setup.shared.publish(Started("a:80", now_us - 4_000_000, "r2", 1_763_700_123_250, cold=True))
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["circuit"], one["circuit_by"]) == ("open", "r2")
    assert one["circuit_wait_s"] == pytest.approx(60, abs=0.1)
    assert one["share"] == pytest.approx(0.4, abs=0.01)
    assert one["started_unix_s"] == 1_763_700_123.25


async def test_the_older_routers_spelling_works(setup: Setup) -> None:
    assert (await setup.client.post("/add_worker", params={"url": "http://a"})).json()["worker_id"] == "a:80"
    assert (await setup.client.get("/list_workers")).json() == {"urls": ["http://a:80"]}
    assert (await setup.client.post("/remove_worker", params={"url": "http://a:80"})).status_code == 200
    again = await setup.client.post("/remove_worker", params={"url": "http://a:80"})
    assert (again.status_code, code(again)) == (404, "worker_not_found")
    assert (await setup.client.post("/add_worker")).status_code == 400


# Models.


async def test_models_are_merged_with_the_length_that_every_worker_takes(setup: Setup) -> None:
    a, b, c = setup.add("a", "b", "c")
    setup.registry.described(a, (ServedModel("m", 8192, "vllm"), ServedModel("x")), "", 0)
    setup.registry.described(b, (ServedModel("m", 4096),), "", 0)
    setup.registry.described(c, (ServedModel("m"),), "", 0)
    listed = (await setup.client.get("/v1/models")).json()
    models = {model["id"]: (model["workers"], model["max_model_len"]) for model in listed["data"]}
    assert models == {"m": (3, 4096), "x": (1, None)}
    assert (await setup.client.get("/v1/models/m")).json()["owned_by"] == "vllm"
    missing = await setup.client.get("/v1/models/org/name")
    assert (missing.status_code, code(missing)) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/get_model_info", "/get_server_info", "/server_info"])
async def test_what_a_worker_says_of_itself_passes_through(setup: Setup, path: str) -> None:
    a, _ = setup.add("a", "b")
    setup.registry.probed(a, ok=False, refused=True, detail="")
    setup.answer = lambda request: httpx.Response(203, json={"path": request.url.path})
    answer = await setup.client.get(path)
    assert (answer.status_code, answer.json()) == (203, {"path": path})
    assert answer.headers["x-cacheway-worker"] == "b:80"


async def test_a_mistake_of_ours_has_the_openai_shape_too(setup: Setup) -> None:
    """An answer that httpx cannot make sense of is no case anybody planned for."""
    setup.add("a:1")
    setup.answer = lambda _: 1 / 0
    transport = httpx.ASGITransport(setup.api, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (500, "internal_error")


async def test_without_a_worker_to_ask_the_answer_says_when_to_come_back(setup: Setup) -> None:
    answer = await setup.client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (503, "no_worker_available")
    assert answer.headers["retry-after"] == "2"


async def test_a_worker_that_does_not_answer_is_a_bad_gateway(setup: Setup) -> None:
    setup.add("a")
    setup.answer = _unreachable
    answer = await setup.client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (502, "upstream_error")


def _unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


# Flushing.


async def test_a_flush_asks_every_worker_in_its_own_way_and_forgets_those_that_did(setup: Setup) -> None:
    setup.add("sglang", "vllm", "broken", "gone")

    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.host:
            case "vllm" if request.url.path == "/flush_cache":
                return httpx.Response(404)
            case "broken":
                return httpx.Response(500)
            case "gone":
                return _unreachable(request)
        return httpx.Response(200)

    setup.answer = answer
    flushed = await setup.client.post("/flush_cache")
    assert flushed.status_code == 200
    assert flushed.json() == {
        "flushed": ["sglang:80", "vllm:80"],
        "failed": {"broken:80": "HTTP 500", "gone:80": "ConnectError"},
    }
    assert [op.worker for op in setup.shared.said(Forget)] == ["sglang:80", "vllm:80"]
    assert "POST vllm/reset_prefix_cache" in setup.asked


async def test_a_slow_worker_does_not_keep_the_others_from_flushing(setup: Setup) -> None:
    setup.add("slow", "well")
    flushed = asyncio.Event()

    async def slow() -> httpx.Response:
        await flushed.wait()
        return httpx.Response(200)

    def answer(request: httpx.Request) -> Any:
        if request.url.host == "slow":
            return slow()
        flushed.set()
        return httpx.Response(200)

    setup.answer = answer
    assert (await setup.client.post("/flush_cache")).json()["flushed"] == ["slow:80", "well:80"]


async def test_a_flush_that_no_worker_did_is_an_error(setup: Setup) -> None:
    setup.add("a")
    setup.answer = _unreachable
    assert (await setup.client.post("/flush_cache")).status_code == 502
    assert not setup.shared.said(Forget)
