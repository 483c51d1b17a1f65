"""Numbers and names of administrators and of workers that were made to break something.

Before they were bounded where they enter, one label with a lone surrogate made ``GET /workers`` fail for good
and ended the snapshots of the fleet, and one worker's page of metrics ended the reports of all workers.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakes.running import Fleet, RunningGateway, until, until_async

MESSAGE: dict[str, Any] = {"model": "emulated", "prompt": "hello", "max_tokens": 2}

HUGE = 10**400
SURROGATE = "\ud800"


async def posted(
    gateway: RunningGateway, method: str, path: str, body: Any, content: bytes | None = None
) -> tuple[int, str]:
    """Status and text of the answer to JSON as an attacker writes it: escapes of surrogates, huge numbers."""
    answer = await gateway.client.request(
        method,
        path,
        content=json.dumps(body).encode() if content is None else content,
        headers={"content-type": "application/json"},
    )
    return answer.status_code, answer.text


async def is_well(gateway: RunningGateway) -> None:
    """Serve, list the workers, and write a snapshot that begins now or later."""
    assert (await gateway.client.post("/v1/completions", json=MESSAGE)).status_code == 200
    for path in ("/workers", "/v1/models", "/audit", "/settings", "/queue", "/replicas", "/readiness"):
        assert (await gateway.client.get(path)).status_code == 200, path
    log, now_us = gateway.process.shared, gateway.process.clock.now_us()

    def is_new() -> bool:
        age_s = log.status.snapshot_age_s
        return age_s is not None and gateway.process.clock.now_us() - age_s * 1e6 > now_us

    await until(is_new)
    assert log.status.degraded_reason is None


SAID = [
    {"labels": {"x": SURROGATE}},
    {"labels": {SURROGATE: "x"}},
    {"labels": {"x": "y" * 5000}},
    {"labels": {"x" * 300: "y"}},
    {"labels": {f"l{number}": "x" for number in range(65)}},
    {"labels": {"bucket": "9" * 5000}},
    {"labels": {"dp_size": "²"}},
    {"labels": {"bootstrap_port": "²"}},
    {"labels": {"bootstrap_port": "9" * 5000}},
    {"capacity_tokens": 10**30},
    {"capacity_tokens": 2**63},
    {"capacity_tokens": 2**53},
    {"capacity_tokens": HUGE},
    {"capacity_tokens": -1},
    {"site": SURROGATE},
    {"site": "x" * 300},
    {"bootstrap_host": SURROGATE},
    {"dp_size": HUGE},
    {"bootstrap_port": HUGE},
    {"role": SURROGATE},
]


async def test_what_is_said_of_a_worker_is_bounded(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    (local,) = gateway.process.registry.all()
    await until(lambda: local.worker.capacity_tokens)
    before = local.worker
    for said in SAID:
        for method, path, body in (
            ("PATCH", f"/workers/{before.worker_id}", said),
            ("PUT", f"/workers/{before.worker_id}", said),
            ("POST", "/workers", {"url": "http://127.0.0.1:9", **said}),
        ):
            status, text = await posted(gateway, method, path, body)
            assert status == 400, (method, said, text)
    assert gateway.process.registry.all() == [local]
    assert local.worker == before
    await is_well(gateway)


BODIES: list[tuple[str, str, Any]] = [
    ("POST", "/workers", {"url": SURROGATE}),
    ("POST", "/workers", {"url": f"http://{SURROGATE}:80"}),
    ("POST", "/workers", {"url": "http://a:" + "9" * 5000}),
    ("POST", "/workers", {"url": "http://a:²"}),
    ("POST", "/register_encoder_url", {"url": f"http://a{SURROGATE}"}),
    ("POST", "/register_encoder_url", {"url": "http://a:" + "9" * 5000}),
    ("DELETE", "/unregister_encoder_url", {"url": SURROGATE}),
    ("PATCH", "/settings", {"values": {"queue.size": HUGE}}),
    ("PATCH", "/settings", {"values": {"queue.size": 2**64}}),
    ("PATCH", "/settings", {"values": {"queue.size": -(2**64)}}),
    ("PATCH", "/settings", {"values": {"queue.timeout_s": HUGE}}),
    ("PATCH", "/settings", {"values": {"fleet.health_check_interval_s": 1e308}}),
    ("PATCH", "/settings", {"values": {"fleet.health_check_endpoint": f"/{SURROGATE}"}}),
    ("PATCH", "/settings", {"values": {SURROGATE: 1}}),
    ("PATCH", "/settings", {"values": {"queue.size": SURROGATE}}),
    ("PATCH", "/settings", {"values": {"queue.size": 5}, "reason": SURROGATE}),
    ("PATCH", "/settings", {"values": {"queue.size": 5}, "expected_revision": HUGE}),
    ("PATCH", "/settings", {"values": {"queue.size": 5}, SURROGATE: 1}),
    ("POST", "/settings/rollback", {"revision": HUGE}),
    ("PUT", "/policies", {"policy": SURROGATE}),
    ("POST", "/explain", {**MESSAGE, "n": HUGE}),
    ("POST", "/explain", {**MESSAGE, "max_tokens": HUGE}),
    ("POST", "/explain", {**MESSAGE, "n": 2**63}),
    ("POST", "/explain", {**MESSAGE, "model": SURROGATE}),
]


async def test_no_admin_body_breaks_anything(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    for method, path, body in BODIES:
        status, text = await posted(gateway, method, path, body)
        assert 400 <= status < 500, (path, body, text)
        assert "error" in json.loads(text)
    assert len(gateway.process.registry.all()) == 1
    await is_well(gateway)


async def test_a_change_with_long_names_around_it_is_in_the_audit(fleet: Fleet) -> None:
    """Ids of requests, and paths, are the caller's words; the change is made, so it must be told."""
    gateway = await fleet.gateway()
    base = "b" * 1900
    for headers in ({"x-request-id": "i" * 5000}, {"x-request-id": "\u00e9" * 300}, {}):
        raw = {name: value.encode("latin-1") for name, value in headers.items()}
        added = await gateway.client.post(
            "/workers", json={"url": f"http://127.0.0.1:9/{base}", "labels": {"x": "y" * 4000}}, headers=raw
        )
        assert added.status_code == 202
        worker_id = added.json()["worker_id"]
        removed = await gateway.client.delete(f"/workers/{worker_id}", headers=raw)
        assert removed.status_code == 202
    told = (await gateway.client.get("/audit")).json()
    assert told["total"] == 6
    assert gateway.process.registry.all() == []


@contextlib.asynccontextmanager
async def worker(pages: dict[str, bytes]) -> AsyncIterator[str]:
    """A worker that says what it is told to, and answers all else well."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ")[1].decode()
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length: "):
                        await reader.readexactly(int(line[16:]))
                body = pages.get(path, b"{}")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def info(text: str) -> dict[str, bytes]:
    return {"/get_server_info": text.encode()}


def vllm(text: str) -> dict[str, bytes]:
    return {
        "/metrics": b'vllm:cache_config_info{%b} 1.0\nvllm:num_requests_running{engine="0"} 1\n'
        % text.encode()
    }


FACTS: dict[str, dict[str, bytes]] = {
    "capacity 2**64": info(f'{{"max_total_num_tokens": {2**64}}}'),
    "capacity 2**53": info(f'{{"max_total_num_tokens": {2**53}}}'),
    "capacity 10**400": info('{"max_total_num_tokens": 1%s}' % ("0" * 400)),
    "capacity of 5000 digits": info('{"max_total_num_tokens": 1%s}' % ("0" * 5000)),
    "capacity NaN": info('{"max_total_num_tokens": NaN}'),
    "capacity true": info('{"max_total_num_tokens": true}'),
    "ranks": info(f'{{"max_total_num_tokens": 1000000, "dp_size": {2**62}}}'),
    "ranks 10**400": info('{"max_total_num_tokens": 10, "dp_size": 1%s}' % ("0" * 400)),
    "running": info(f'{{"max_total_num_tokens": 10, "max_running_requests": {2**70}}}'),
    "running of a rank": info(
        '{"max_total_num_tokens": 10, "internal_states": '
        f'[{{"effective_max_running_requests_per_dp": {2**70}}}]}}'
    ),
    "steps": info('{"max_total_num_tokens": 10, "chunked_prefill_size": 1%s}' % ("0" * 400)),
    "role": info('{"max_total_num_tokens": 10, "disaggregation_mode": "\\ud800"}'),
    "blocks": vllm('block_size="16",num_gpu_blocks="%s"' % ("9" * 400)),
    "blocks of 5000 digits": vllm('block_size="16",num_gpu_blocks="%s"' % ("9" * 5000)),
    "blocks below nothing": vllm('block_size="-16",num_gpu_blocks="5"'),
    "blocks in another script": vllm('block_size="16",num_gpu_blocks="²"'),
    "tokens": vllm(f'kv_cache_size_tokens="{2**64}"'),
    "tokens of 5000 digits": vllm('kv_cache_size_tokens="%s"' % ("9" * 5000)),
    "start": {"/metrics": b"process_start_time_seconds 1e300\n"},
    "start NaN": {"/metrics": b"process_start_time_seconds NaN\n"},
    "start soon": {"/metrics": b"process_start_time_seconds 999999999999\n"},
    "models": {
        "/v1/models": b'{"data": [{"id": "\\ud800"}, {"id": "emulated", "max_model_len": 1%s}]}'
        % (b"0" * 400)
    },
    "many models": {"/v1/models": json.dumps({"data": [{"id": f"m{n}"} for n in range(50_000)]}).encode()},
    "long models": {"/v1/models": json.dumps({"data": [{"id": "m" * 1_000_000}]}).encode()},
    "models without sense": {
        "/v1/models": b'{"data": [{"id": "emulated", "max_model_len": true, "root": {}}]}'
    },
}
for _value in ("1e300", "NaN", "+Inf", "-Inf", "-1", "1e19", "9" * 400, "9" * 5000):
    for _name in ("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "sglang:num_queue_reqs"):
        FACTS[f"{_name} {_value[:6]}{len(_value)}"] = {
            "/metrics": f'{_name}{{engine="0"}} {_value}\n{_name}{{engine="1"}} {_value}\n'.encode()
        }

AT_ONCE = 7


@pytest.mark.parametrize("first", range(0, len(FACTS), AT_ONCE))
async def test_nothing_that_workers_say_of_themselves_ends_the_reports_of_others(
    fleet: Fleet, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await fleet.engine()
    async with contextlib.AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(worker(pages))
            for pages in [*FACTS.values()][first : first + AT_ONCE]
        ]
        gateway = await fleet.gateway(
            engine.url, *urls, admission={"engine_metrics_interval_s": 0.02}, fleet={"slow_start_s": 0}
        )
        registry, reports = gateway.process.registry, gateway.process.fleet.reports
        honest, *hostile = (registry.get(url.partition("://")[2]) for url in (engine.url, *urls))
        assert honest is not None
        await until(lambda: all(local is not None and local.probes > 1 for local in hostile))
        await until(lambda: reports.get(honest.worker.worker_id))

        def told_us() -> int:
            report = reports.get(honest.worker.worker_id)
            assert report is not None
            return report.at_us

        before_us, number = told_us(), 0

        async def told_more() -> bool:
            """Keep both workers busy, with prompts of which they hold nothing."""
            nonlocal number
            bodies = []
            for _ in range(8):
                number += 1
                bodies.append({**MESSAGE, "max_tokens": 500, "prompt": f"{number} " * 200})
            answers = await asyncio.gather(
                *(gateway.client.post("/v1/completions", json=body) for body in bodies)
            )
            assert {answer.status_code for answer in answers} == {200}
            return told_us() > before_us

        await until_async(told_more)
        assert all(0 <= local.worker.capacity_tokens <= 2**36 for local in registry.all())
        await is_well(gateway)
    events = {getattr(record, "event", "") for record in caplog.records}
    assert not events & {"task.failed", "probe.crashed", "metrics.crashed", "redis.failed", "request.crashed"}
