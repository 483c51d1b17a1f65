"""Turns and times at which replicas read engines' metrics, their reports, and harmless failures."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import httpx
import pytest
from fakes.gateway import FakeShared, VirtualTime, log_port, registry
from fakes.running import until

from policies import AdmissionRules, Finished, Placed, Reported
from router.fleet import Core, EngineMetrics, LocalWorker, engine_metrics
from router.fleet.asking import page

SECOND = 1_000_000
PAGE = b"""vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="0"} 1
vllm:kv_cache_usage_perc{engine="0"} 0.25
"""

Answer = Callable[[httpx.Request], httpx.Response]


class Setup:
    """One replica of two, with or without its turn."""

    def __init__(self, replica: str = "one", others: tuple[str, ...] = ()) -> None:
        self.answer: Answer = lambda _: httpx.Response(200, content=PAGE)
        self.asked: list[str] = []
        self.time = VirtualTime()
        self.shared = FakeShared()
        self.alive = (replica, *others)
        self.registry = registry(self.shared, self.time)
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))
        self.metrics = EngineMetrics(
            Core(
                self.shared.fleet,
                self.registry,
                log_port(self.shared, self.time, replica, lambda: self.alive),
            ),
            partial(page, self.client),
            AdmissionRules(engine_metrics_interval_s=2.0),
            2.0,
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        return self.answer(request)

    def add(self, name: str = "w", capacity_tokens: int = 100_000) -> LocalWorker:
        local = self.registry.get(self.registry.add(f"http://{name}", capacity_tokens=capacity_tokens))
        assert local is not None
        self.registry.probed(local, ok=True, refused=False, detail="")
        return local

    def give(self, local: LocalWorker, request_id: str = "r", tokens: int = 700) -> None:
        now_us = self.time.clock.now_us()
        self.shared.publish(Placed(request_id, now_us, local.worker.worker_id, "one", 1, tokens, tokens))

    def due(self) -> list[LocalWorker]:
        return self.metrics.due(self.time.clock.now_us())

    async def look_at_due(self) -> list[str]:
        """Read the metrics of all due workers; return their names."""
        due = self.due()
        for local in due:
            await self.metrics.look(local)
        return [local.worker.worker_id for local in due]


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    async with setup.client:
        yield setup


async def test_all_replicas_are_told_what_an_engine_says_and_what_was_in_flight(setup: Setup) -> None:
    local = setup.add()
    local.running_max = 64
    setup.give(local)
    began_us = setup.time.clock.now_us()
    await setup.metrics.look(local)
    assert setup.asked == ["http://w/metrics"]
    (said,) = setup.shared.said(Reported)
    assert began_us < said.at_us < setup.time.clock.now_us()
    assert said == Reported("w:80", said.at_us, "one", 3, 1, 25_000, 64, 1, 700)
    assert (setup.metrics.reports, setup.metrics.failures) == (1, 0)


async def test_requests_that_ended_since_the_engine_counted_are_not_taken_for_those_of_others(
    setup: Setup,
) -> None:
    """It says three and one, long after our four have ended but one: they are not four and one of ours."""
    local = setup.add()
    for name in "abcd":
        setup.give(local, name)
    await setup.metrics.look(local)
    for name in "abc":
        setup.shared.publish(Finished(name, setup.time.clock.now_us()))
    for foreign in (0, 3):
        await setup.metrics.look(local)
        assert setup.shared.fleet.reports.foreign_requests[local.worker.slot] == foreign


async def test_a_share_of_an_unknown_capacity_says_nothing(setup: Setup) -> None:
    await setup.metrics.look(setup.add(capacity_tokens=0))
    (said,) = setup.shared.said(Reported)
    assert (said.running, said.kv_tokens) == (3, -1)


async def test_a_busy_worker_is_looked_at_once_an_interval(setup: Setup) -> None:
    local = setup.add()
    setup.give(local)
    assert await setup.look_at_due() == ["w:80"]
    setup.time.advance(1.9)
    assert not setup.due()
    setup.time.advance(0.2)
    assert await setup.look_at_due() == ["w:80"]


async def test_a_worker_with_nothing_in_flight_is_looked_at_once(setup: Setup) -> None:
    local = setup.add()
    assert await setup.look_at_due() == ["w:80"]
    setup.time.advance(60)
    assert not setup.due()
    setup.give(local)
    assert await setup.look_at_due() == ["w:80"]
    setup.shared.publish(Finished("r", setup.time.clock.now_us()))
    setup.time.advance(60)
    assert not setup.due()


async def test_a_worker_that_is_not_well_is_not_asked(setup: Setup) -> None:
    local = setup.add()
    setup.registry.probed(local, ok=False, refused=True, detail="")
    assert not setup.due()


async def test_the_longest_overdue_come_first(setup: Setup) -> None:
    for name in ("c", "a", "b"):
        setup.give(setup.add(name), name)
        await setup.look_at_due()
        setup.time.advance(0.3)
    setup.time.advance(60)
    assert await setup.look_at_due() == ["c:80", "a:80", "b:80"]


async def test_the_next_in_turn_looks_when_the_first_does_not() -> None:
    """One of two replicas has its turn at a worker; the other reads two intervals after it was due."""
    setups = [Setup("one", ("two",)), Setup("two", ("one",))]
    for setup in setups:
        local = setup.add()
        setup.give(local)
        setup.shared.publish(Reported("w:80", setup.time.clock.now_us(), "one", 1))
        setup.time.advance(2.1)
    first, second = sorted(setups, key=lambda setup: not setup.due())
    assert first.due()
    assert not second.due()
    second.time.advance(3.8)
    assert not second.due()
    second.time.advance(0.2)
    assert second.due()
    second.alive = second.alive[:1]  # the first replica was found dead
    second.shared.publish(Reported("w:80", second.time.clock.now_us(), "one", 1))
    second.time.advance(2.1)
    assert second.due()
    await asyncio.gather(*(setup.client.aclose() for setup in setups))


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: httpx.Response(404),
        lambda _: httpx.Response(200, content=b"nothing of interest 1\n"),
        lambda request: (_ for _ in ()).throw(httpx.ConnectError("refused", request=request)),
        lambda _: (_ for _ in ()).throw(ValueError("a mistake of ours")),
    ],
)
async def test_a_worker_without_a_useful_page_is_counted_and_left_alone(
    setup: Setup, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    setup.answer = answer
    setup.give(setup.add())
    assert await setup.look_at_due() == ["w:80"]
    assert (setup.metrics.reports, setup.metrics.failures) == (0, 1)
    assert not setup.shared.said(Reported)
    setup.time.advance(19.9)
    assert not setup.due()
    setup.time.advance(0.2)
    assert await setup.look_at_due() == ["w:80"]


async def test_workers_that_are_gone_are_forgotten(setup: Setup) -> None:
    for name in ("a", "b"):
        setup.add(name)
    await setup.look_at_due()
    setup.registry.remove("a:80")
    setup.due()
    assert set(setup.metrics._not_before_us) == {"b:80"}
    assert set(setup.metrics._inflight) == {"b:80"}


async def test_the_loop_looks_and_goes_on_whatever_comes() -> None:
    """A page that never comes delays no other worker's page, and is not requested twice."""
    setup = Setup()

    async def handle(request: httpx.Request) -> httpx.Response:
        setup.asked.append(request.url.host)
        if request.url.host == "silent":
            await asyncio.Event().wait()
        return httpx.Response(200, content=PAGE)

    setup.client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    metrics = EngineMetrics(
        Core(
            setup.shared.fleet,
            setup.registry,
            log_port(setup.shared, setup.time, "one", lambda: ("one",)),
        ),
        partial(page, setup.client),
        AdmissionRules(engine_metrics_interval_s=0.01),
        60.0,
    )
    for name in ("silent", "w"):
        setup.give(setup.add(name), name)
    async with setup.client:
        task = asyncio.create_task(metrics.run())
        try:
            for count in (1, 2, 3):
                await until(lambda count=count: setup.asked.count("w") >= count)
                setup.time.advance(1.0)
            assert setup.asked.count("silent") == 1
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_loop_may_be_switched_off_and_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_metrics, "OFF_S", 0.001)
    setup = Setup()
    setup.metrics.rules = AdmissionRules(engine_metrics_interval_s=0.0)
    setup.give(setup.add())
    async with setup.client:
        task = asyncio.create_task(setup.metrics.run())
        try:
            await asyncio.sleep(0.02)
            assert setup.asked == []
            setup.metrics.rules = AdmissionRules(engine_metrics_interval_s=0.01)
            await until(lambda: setup.asked)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_report_that_cannot_be_published_is_a_page_that_did_not_come(setup: Setup) -> None:
    """The loop reads the other workers' pages after any error at one."""
    local, other = setup.add("a"), setup.add("b")
    local.running_max = 2**70
    assert await setup.look_at_due() == ["a:80", "b:80"]
    assert (setup.metrics.reports, setup.metrics.failures) == (1, 1)
    assert setup.shared.fleet.reports.get(other.worker.worker_id) is not None
    assert setup.due() == []
