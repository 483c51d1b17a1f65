"""Probes against scripted workers: the meaning of each answer, and a loop that survives all of them."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fakes.asking import ScriptedAsker
from fakes.gateway import FakeShared, VirtualTime, registry
from fakes.running import until

from policies import HostMemory, Started
from router.destinations import Destinations
from router.errors import WorkerRefused
from router.fleet import (
    INSTANCE_HEADER,
    Asker,
    Health,
    HealthChecks,
    HealthRules,
    LocalWorker,
    ServedModel,
    health,
    instance_of,
)
from router.fleet.asking import TooLate


def rules(interval_s: float, timeout_s: float = 5.0, endpoint: str = "/health") -> HealthRules:
    return HealthRules(
        health_check_interval_s=interval_s,
        health_check_timeout_s=timeout_s,
        health_check_endpoint=endpoint,
    )


RULES = rules(0.05, 0.2)
MODELS = {"data": [{"id": "m", "max_model_len": 8192, "owned_by": "sglang"}]}

Handler = Callable[[httpx.Request], Any]


def sglang(request: httpx.Request) -> httpx.Response:
    """A well worker."""
    match request.url.path:
        case "/health":
            return httpx.Response(200)
        case "/v1/models":
            return httpx.Response(200, json=MODELS)
        case "/get_server_info":
            return httpx.Response(200, json={"max_total_num_tokens": 400_000, "max_running_requests": 32})
    return httpx.Response(404)


class Setup:
    """One worker whose answers the test writes."""

    def __init__(self) -> None:
        self.answer: Handler = sglang
        self.asked: list[str] = []
        self.shared = FakeShared()
        self.registry = registry(
            self.shared, VirtualTime(), health_failure_threshold=1, health_success_threshold=1
        )
        self.asker = ScriptedAsker(self._handle)
        self.checks = HealthChecks(self.registry, self.asker, RULES)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.url.host}{request.url.path}")
        answer = self.answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer  # type: ignore[no-any-return]

    def add(self, name: str = "w") -> LocalWorker:
        local = self.registry.get(self.registry.add(f"http://{name}"))
        assert local is not None
        return local


@pytest.fixture
async def setup() -> Setup:
    return Setup()


@contextlib.asynccontextmanager
async def running(setup: Setup) -> AsyncIterator[None]:
    """The loop."""
    task = asyncio.create_task(setup.checks.run())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_well_worker_is_asked_what_it_serves(setup: Setup) -> None:
    local = setup.add()
    await setup.checks.probe(local)
    assert local.health is Health.HEALTHY
    assert local.detail == "HTTP 200 from /health"
    assert local.models == (ServedModel("m", 8192, "sglang"),)
    assert (local.engine, local.worker.capacity_tokens, local.running_max) == ("sglang", 400_000, 32)


async def test_vllm_says_its_capacity_in_its_metrics(setup: Setup) -> None:
    def vllm(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1\n'
            return httpx.Response(200, text=text)
        return httpx.Response(404) if request.url.path == "/get_server_info" else sglang(request)

    setup.answer = vllm
    local = setup.add()
    await setup.checks.probe(local)
    assert (local.engine, local.worker.capacity_tokens) == ("vllm", 16_000)


async def test_host_memory_that_an_engine_reports_is_in_the_log_once(setup: Setup) -> None:
    """The same description again is no news; one without it from a restarted engine is believed, too."""
    ratio = 3.0

    def engine(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/get_server_info":
            info = {"max_total_num_tokens": 400, "enable_hierarchical_cache": ratio > 0}
            return httpx.Response(200, json=info | {"hicache_ratio": ratio})
        return sglang(request)

    setup.answer = engine
    local = setup.add()
    await setup.checks.probe(local)
    assert [op.tokens for op in setup.shared.said(HostMemory)] == [1200]
    assert setup.shared.fleet.host_tokens(local.worker) == 1200
    setup.registry.noticed(local, WorkerRefused("gone"), setup.registry.now_us())
    await setup.checks.probe(local)
    assert len(setup.shared.said(HostMemory)) == 1
    ratio = 0.0
    setup.registry.noticed(local, WorkerRefused("gone"), setup.registry.now_us())
    await setup.checks.probe(local)
    assert [op.tokens for op in setup.shared.said(HostMemory)] == [1200, 0]


async def test_an_engine_is_named_although_its_capacity_was_given(setup: Setup) -> None:
    setup.registry.add("http://w", capacity_tokens=7)
    (local,) = setup.registry.all()
    await setup.checks.probe(local)
    assert (local.engine, local.worker.capacity_tokens) == ("sglang", 7)


async def test_an_engine_that_was_started_for_another_role_is_not_well_until_they_agree(
    setup: Setup,
) -> None:
    """Prefill and decode workers with swapped roles would wait for each other for minutes."""
    mode = "prefill"

    def engine(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/get_server_info":
            return httpx.Response(200, json={"max_total_num_tokens": 400, "disaggregation_mode": mode})
        return sglang(request)

    setup.answer = engine
    setup.registry.add("http://w", role="decode")
    (local,) = setup.registry.all()
    await setup.checks.probe(local)
    assert local.health is Health.UNHEALTHY
    assert local.detail == (
        "its engine was started with --disaggregation-mode prefill, but its role is decode"
    )
    mode = "decode"
    await setup.checks.probe(local)
    assert local.health is Health.HEALTHY
    setup.registry.change(local.worker.worker_id, role="plain")
    assert not len(setup.registry.eligible("m", setup.registry.now_us()))
    await setup.checks.probe(local)
    assert local.health is Health.UNHEALTHY
    setup.registry.change(local.worker.worker_id, role="decode")
    await setup.checks.probe(local)
    assert local.health is Health.HEALTHY


async def test_a_restarted_engine_is_asked_for_its_role_again(setup: Setup) -> None:
    mode = "decode"

    def engine(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/get_server_info":
            return httpx.Response(200, json={"max_total_num_tokens": 400, "disaggregation_mode": mode})
        return sglang(request)

    setup.answer = engine
    setup.registry.add("http://w", role="decode")
    (local,) = setup.registry.all()
    await setup.checks.probe(local)
    mode = "null"
    setup.registry.noticed(local, WorkerRefused("gone"), setup.registry.now_us())
    await setup.checks.probe(local)
    assert local.health is Health.UNHEALTHY
    assert "--disaggregation-mode null" in local.detail


async def test_a_convertible_worker_is_asked_for_its_role_when_it_turns(setup: Setup) -> None:
    """The engine may still have its old part when the role is already the new one."""
    setup.answer = lambda request: (
        httpx.Response(200, json={"max_total_num_tokens": 400, "disaggregation_mode": "prefill"})
        if request.url.path == "/get_server_info"
        else sglang(request)
    )
    setup.registry.add("http://w", role="decode", labels={"convertible": "true"})
    (local,) = setup.registry.all()
    await setup.checks.probe(local)
    assert local.health is Health.HEALTHY


async def test_a_worker_that_answers_only_its_health_serves_any_model(setup: Setup) -> None:
    setup.answer = lambda request: httpx.Response(200 if request.url.path == "/health" else 404)
    local = setup.add()
    await setup.checks.probe(local)
    assert (local.health, local.models, local.engine) == (Health.HEALTHY, None, "")


async def test_models_that_a_worker_fails_to_list_once_are_not_forgotten(setup: Setup) -> None:
    """It is asked with each tenth probe."""
    local = setup.add()
    await setup.checks.probe(local)
    setup.answer = lambda request: httpx.Response(200 if request.url.path == "/health" else 500)
    for _ in range(10):
        await setup.checks.probe(local)
    assert setup.asked.count("w/v1/models") == 2
    assert local.models == (ServedModel("m", 8192, "sglang"),)


def raising(error: Exception) -> Handler:
    def answer(_: httpx.Request) -> httpx.Response:
        raise error

    return answer


async def _slow(_: httpx.Request) -> httpx.Response:
    await asyncio.sleep(60)
    return httpx.Response(200)


class Endless(httpx.AsyncByteStream):
    """A body that never ends."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self.bytes_sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(self._pause_s)
            self.bytes_sent += 65536
            yield b"x" * 65536


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (lambda _: httpx.Response(503), "HTTP 503 from /health"),
        (raising(httpx.ConnectError("refused")), "connection failed: refused"),
        (raising(httpx.ConnectTimeout("")), "no connection within 0.2 s"),
        (raising(httpx.ReadTimeout("")), "no answer within 0.2 s"),
        (raising(httpx.RemoteProtocolError("nonsense")), "no answer: nonsense"),
        (_slow, "no answer within 0.2 s"),
        (raising(ZeroDivisionError("ours")), "ZeroDivisionError: ours"),
    ],
    ids=["status", "refused", "connect timeout", "read timeout", "protocol", "slow", "our mistake"],
)
async def test_a_failed_probe_says_why(setup: Setup, answer: Handler, detail: str) -> None:
    local = setup.add()
    setup.answer = answer
    await setup.checks.probe(local)
    assert (local.health, local.detail) == (Health.UNHEALTHY, detail)


async def test_a_url_with_v1_is_told_what_to_leave_out(setup: Setup) -> None:
    """Clients need /v1 in their base URL, so it is what people copy."""
    local = setup.add("http://a:1/v1")
    setup.answer = lambda _: httpx.Response(404)
    await setup.checks.probe(local)
    assert local.detail == "HTTP 404 from /health; leave /v1 out of the worker's URL"


@pytest.mark.parametrize("pause_s", [0.0, 0.01], ids=["too much", "too slow"])
async def test_a_description_without_an_end_is_given_up(setup: Setup, pause_s: float) -> None:
    """4 MiB are read at most, and for 0.2 s."""
    body = Endless(pause_s)
    setup.answer = lambda request: (
        httpx.Response(200, stream=body) if request.url.path == "/v1/models" else sglang(request)
    )
    local = setup.add()
    await setup.checks.probe(local)
    assert (local.health, local.models, local.engine) == (Health.HEALTHY, None, "sglang")
    assert body.bytes_sent <= 5 * 1024 * 1024


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"data": 1e999}', b"\xff\xfe", b"9" * 10_000])
async def test_a_description_that_is_nonsense_is_none(setup: Setup, body: bytes) -> None:
    setup.answer = lambda request: httpx.Response(200, content=body)
    local = setup.add()
    await setup.checks.probe(local)
    assert (local.health, local.models, local.worker.capacity_tokens) == (Health.HEALTHY, None, 0)


# The loop.


async def test_the_loop_finds_new_workers_lost_ones_and_those_that_return(setup: Setup) -> None:
    async with running(setup):
        a, b = setup.add("a"), setup.add("b")
        await until(lambda: a.health is b.health is Health.HEALTHY)
        setup.answer = raising(httpx.ConnectError("refused"))
        await until(lambda: a.health is b.health is Health.UNHEALTHY)
        setup.answer = sglang
        await until(lambda: a.health is b.health is Health.HEALTHY)


async def test_a_worker_that_refused_a_request_is_probed_at_once(setup: Setup) -> None:
    """Not after the interval, which is an hour here."""
    setup.checks = HealthChecks(setup.registry, setup.asker, rules(3600))
    local = setup.add()
    async with running(setup):
        await until(lambda: local.health is Health.HEALTHY)
        setup.answer = raising(httpx.ConnectError("refused"))
        setup.registry.noticed(local, WorkerRefused("refused"), 1)
        await until(lambda: local.health is Health.UNHEALTHY)


async def test_a_worker_that_may_have_restarted_is_asked_at_once_when_it_started(setup: Setup) -> None:
    """Once per suspicion, not every time; the answer clears the suspicion."""
    started_unix_s = 1_763_700_000

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text=f"process_start_time_seconds {started_unix_s}\n")
        return sglang(request)

    setup.answer = answer
    setup.checks = HealthChecks(setup.registry, setup.asker, rules(3600))
    local = setup.add()
    async with running(setup):
        await until(lambda: local.health is Health.HEALTHY)
        started_unix_s += 60
        setup.registry.suspect(local)
        await until(lambda: len(setup.shared.said(Started)) == 2)
        await until(lambda: not local.suspected_us)
    assert [op.cold for op in setup.shared.said(Started)] == [False, True]
    assert local.probes == 2


async def test_a_worker_that_was_replaced_is_probed_at_once(setup: Setup) -> None:
    setup.checks = HealthChecks(setup.registry, setup.asker, rules(3600))
    local = setup.add("w:443")
    async with running(setup):
        await until(lambda: local.health is Health.HEALTHY)
        setup.registry.add("https://w:443")
        (replaced,) = setup.registry.all()
        await until(lambda: replaced.health is Health.HEALTHY)


async def test_one_workers_trouble_is_nobody_elses(setup: Setup) -> None:
    """One worker never answers, one breaks an assumption of the gateway; the third is healthy."""
    started = asyncio.Event()

    def answer(request: httpx.Request) -> Any:
        match request.url.host:
            case "slow":
                started.set()
                return _slow(request)
            case "broken":
                raise ZeroDivisionError
        return sglang(request)

    setup.answer = answer
    slow, broken, well = setup.add("slow"), setup.add("broken"), setup.add("well")
    async with running(setup):
        await until(lambda: well.probes > 2 and broken.probes > 1 and slow.probes > 1)
    assert (slow.health, broken.health, well.health) == (
        Health.UNHEALTHY,
        Health.UNHEALTHY,
        Health.HEALTHY,
    )


async def test_how_long_it_takes_to_connect_is_told(setup: Setup) -> None:
    """Over a real socket, since a fake connects to none. Each probe has its own connection."""
    told: list[tuple[LocalWorker, float]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    local = setup.add(f"127.0.0.1:{port}")
    async with server:
        checks = HealthChecks(
            setup.registry,
            Asker(Destinations(), ssl.create_default_context()),
            rules(5, 20),
            lambda of, connect_s: told.append((of, connect_s)),
        )
        await checks.probe(local)
        await checks.probe(local)
    assert local.health is Health.HEALTHY
    assert [of for of, _ in told] == [local] * 2
    assert 0.0 < told[0][1] < 20


async def test_other_rules_are_followed_at_once(setup: Setup) -> None:
    """Also by who was to be probed in an hour."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return sglang(request) if request.url.path != "/other" else httpx.Response(200)

    setup.answer = answer
    setup.checks = HealthChecks(setup.registry, setup.asker, rules(3600))
    local = setup.add()
    async with running(setup):
        await until(lambda: local.health is Health.HEALTHY)
        setup.checks.use(rules(3600))
        probes = local.probes
        setup.checks.use(rules(0.01, endpoint="/other"))
        await until(lambda: local.probes >= probes + 3)
    assert asked.count("/health") == 1


# No failure of some workers stops the probing of others.


async def test_hundreds_that_never_answer_keep_nobody_from_being_probed(setup: Setup) -> None:
    """With 256 places, 32 of them for the young."""
    setup.checks = HealthChecks(setup.registry, setup.asker, rules(0.05, 3600), places=256)
    setup.answer = lambda request: _slow(request) if request.url.host.startswith("dead") else sglang(request)
    for number in range(300):
        setup.add(f"dead{number}")
    well = [setup.add(f"well{number}") for number in range(5)]
    async with running(setup):
        await until(lambda: all(local.health is Health.HEALTHY for local in well))
        before = min(local.probes for local in well)
        await until(lambda: all(local.probes > before + 20 for local in well))


async def test_an_outcome_that_cannot_be_taken_in_ends_neither_the_loop_nor_others(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    bad, well = setup.add("bad"), setup.add("well")
    real = setup.registry.probed

    def probed(local: LocalWorker, **said: Any) -> bool:
        if local is bad:
            raise ZeroDivisionError
        return real(local, **said)

    setup.registry.probed = probed  # type: ignore[method-assign]
    async with running(setup):
        await until(lambda: well.probes > 3)
    assert {record.event for record in caplog.records if record.levelname == "ERROR"} == {"probe.crashed"}  # type: ignore[attr-defined]


async def test_a_worker_that_is_removed_while_it_is_probed_is_not_probed_again(setup: Setup) -> None:
    asked = asyncio.Event()
    answer = asyncio.Event()

    async def handle(request: httpx.Request) -> httpx.Response:
        asked.set()
        await answer.wait()
        return sglang(request)

    setup.answer = lambda request: handle(request) if request.url.host == "gone" else sglang(request)
    well = setup.add("well")
    async with running(setup):
        gone = setup.add("gone")
        await asked.wait()
        setup.registry.remove(gone.worker.worker_id)
        answer.set()
        await until(lambda: gone.probes == 1)
        before = well.probes
        await until(lambda: well.probes > before + 3)
    assert gone.probes == 1


class Wedged(ScriptedAsker):
    """Answers no probe until it is built again."""

    async def ask(self, *arguments: Any, **more: Any) -> Any:
        if not self.rebuilt:
            await self.wedged(**more)
        return await super().ask(*arguments, **more)

    async def wedged(self, **more: Any) -> None:
        raise NotImplementedError


class WedgedBeforeConnecting(Wedged):
    """As a pool without a free place: each question times out, and none connects."""

    async def wedged(self, *, timeout_s: float, **_: Any) -> None:
        await asyncio.sleep(timeout_s)
        raise TooLate(connected=False)


class WedgedForever(Wedged):
    """The deadline of a probe does not work."""

    async def wedged(self, *, begun: Callable[[], None], **_: Any) -> None:
        begun()
        await asyncio.Event().wait()


@pytest.mark.parametrize("kind", [WedgedBeforeConnecting, WedgedForever])
async def test_what_asks_is_built_anew_if_it_is_stuck(
    setup: Setup, kind: type[Wedged], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "STUCK_S", 0.1)
    asker = kind(setup._handle)
    setup.checks = HealthChecks(setup.registry, asker, rules(0.05, 0.02))
    workers = [setup.add(f"w{number}") for number in range(100)]
    async with running(setup):
        await until(lambda: all(local.health is Health.HEALTHY for local in workers))
    assert asker.rebuilt == setup.checks.rebuilt >= 1
    assert "probes.stuck" in [record.event for record in caplog.records]  # type: ignore[attr-defined]


async def test_workers_that_all_fail_are_no_sign_that_what_asks_is_stuck(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent workers were reached, and refusing ones answered: the client itself works."""
    monkeypatch.setattr(health, "STUCK_S", 0.05)
    setup.checks = HealthChecks(setup.registry, setup.asker, rules(0.01, 0.01))
    setup.answer = lambda request: (
        _slow(request) if request.url.host == "silent" else raising(httpx.ConnectError("refused"))(request)
    )
    silent, refusing = setup.add("silent"), setup.add("refusing")
    async with running(setup):
        await until(lambda: silent.probes > 30 and refusing.probes > 30)
    assert setup.checks.rebuilt == 0


class HeldUp(ScriptedAsker):
    """The process stands still, for twice the time that makes an asker stuck, before a question is begun."""

    async def ask(self, *arguments: Any, **more: Any) -> Any:
        time.sleep(2 * health.STUCK_S)  # noqa: ASYNC251 - the whole process
        for _ in range(3):
            await asyncio.sleep(0)  # what became due meanwhile runs before this goes on
        return await super().ask(*arguments, **more)


async def test_a_process_that_stood_still_is_no_sign_that_what_asks_is_stuck(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a machine that was suspended, or one that is too busy."""
    monkeypatch.setattr(health, "STUCK_S", 0.1)
    setup.checks = HealthChecks(setup.registry, HeldUp(setup._handle), rules(0.01, 0.01))
    local = setup.add()
    async with running(setup):
        await until(lambda: local.probes > 3)
    assert local.health is Health.HEALTHY
    assert setup.checks.rebuilt == 0


# A gateway among its own workers.


async def test_a_gateway_that_is_its_own_worker_says_so(setup: Setup) -> None:
    """The same holds for its replicas; a gateway of others is a worker like any other."""
    replicas = ("me", "sibling")
    setup.checks = HealthChecks(setup.registry, setup.asker, RULES, replicas=lambda: replicas)

    def gateway(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={INSTANCE_HEADER: instance_of(request.url.host)})

    setup.answer = gateway
    me, sibling, other = setup.add("me"), setup.add("sibling"), setup.add("other")
    for local in (me, sibling, other):
        await setup.checks.probe(local)
    for local in (me, sibling):
        assert (local.health, local.detail) == (
            Health.UNHEALTHY,
            "it is this gateway itself: requests would go round in circles",
        )
    assert other.health is Health.HEALTHY
    replicas = ("me",)
    await setup.checks.probe(sibling)
    assert sibling.health is Health.HEALTHY
