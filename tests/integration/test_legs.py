"""Load is released exactly once, whichever leg of a request breaks and wherever it stands.

    client ──leg──> gateway ──leg──> worker         each cut at every step of a request, in every way
                       └─────leg──> Valkey

Client, worker and gateway are real sockets; one gateway serves, the others only read the log. Who judges
is the log itself (`fakes.journal`) and what every replica made of it: in the end every column of
every fold is zero, no connection is in use, and no task is left.
"""

import asyncio
import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fakes import scripted_worker
from fakes.journal import ANSWERED, LEGAL, PREDICTED_ONLY, TAKEN_BACK, courses, read_log
from fakes.running import Fleet, RunningGateway, until
from fakes.scripted_client import ScriptedClient
from fakes.scripted_worker import PIECE, WHOLE, Fault, Held, ScriptedWorker, Step

from router.fleet import Health, LocalWorker
from router.shared import EmbeddedValkey

pytestmark = pytest.mark.asyncio(loop_scope="module")


class At(StrEnum):
    """Where a request stands when a leg breaks."""

    RECEIVING = "half of the client's body has come"
    CONNECTING = "placed, and the worker does not accept"
    SENDING = "the worker has the head, and reads no more of a large body"
    SENT = "the worker has all of it, and the prefill timer runs"
    PREDICTED = "the worker has all of it, and the prefill timer has run out"
    HEADED = "the head of the answer has come"
    BEGUN = "the first piece of the answer has come"
    LAST = "only the end of the answer is missing"
    PAUSING = "four attempts failed, and the only worker is given a pause"


WORKER_STEP = {
    At.SENDING: Step.ACCEPTED,
    At.SENT: Step.READ,
    At.PREDICTED: Step.READ,
    At.HEADED: Step.HEADED,
    At.BEGUN: Step.BEGUN,
    At.LAST: Step.LAST,
}
"""Where a worker holds the request."""

UNSEEN = (At.SENDING, At.SENT, At.PREDICTED, At.HEADED)
"""The worker is busy with it, and the client has seen nothing."""

SEEN = (At.BEGUN, At.LAST)

PROMPT_BYTES = {At.PREDICTED: 1_100, At.SENDING: 8_000_000}
"""At 2,000 tokens/s the prefill of 200,000 bytes is predicted to take 25 s, that of 1,100 bytes 0.16 s; and
8 MB are more than the sockets between gateway and worker hold."""

numbers = itertools.count()


@dataclass
class Stage:
    """Three replicas that differ only in their patience, and watch each other."""

    fleet: Fleet
    calm: RunningGateway
    """Its timeouts are a minute: what it does, it does because something happened."""
    strict: RunningGateway
    """Gives a worker 0.4 s."""
    hasty: RunningGateway
    """Gives a request 1.2 s: in the fourth pause, which begins 0.7 s after the first attempt."""

    @property
    def gateways(self) -> list[RunningGateway]:
        return self.fleet.gateways

    async def courses(self, *workers: ScriptedWorker) -> list[str]:
        """What the log says of the attempts on some workers."""
        ops = await read_log(self.fleet.redis_url, self.fleet.namespace)
        return courses(ops, [worker.worker_id for worker in workers])

    async def say(self, expected: list[str], *workers: ScriptedWorker) -> None:
        """Wait until the log says what it must, and every replica has nothing left of it."""
        said: list[str] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while (said := await self.courses(*workers)) != expected:
                    await asyncio.sleep(0.01)
        assert said == expected
        await self.idle()

    async def idle(self) -> None:
        """Wait until no replica has anything reserved or in use."""
        for gateway in self.gateways:
            await until(gateway.idle)
            loads = gateway.process.fleet.loads
            assert not loads.prefill_tokens.any()
            assert not loads.inflight_requests.any()
            for local in gateway.process.registry.all():
                assert (local.pool.waiting, local.pool.in_use) == (0, 0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    """Replicas for the whole module; over all of it each attempt was released once."""
    async with contextlib.AsyncExitStack() as stack:
        valkey = await stack.enter_async_context(EmbeddedValkey())
        fleet = Fleet(valkey.url, "legs", stack)
        stage = Stage(
            fleet,
            await replica(fleet, "calm"),
            await replica(
                fleet, "strict", connect_timeout_s=0.4, first_byte_timeout_s=0.4, idle_timeout_s=0.4
            ),
            await replica(fleet, "hasty", request_timeout_s=1.2, read_timeout_s=1.2),
        )
        yield stage
        await stage.idle()
        said = Counter(courses(await read_log(fleet.redis_url, fleet.namespace)))
        assert said.keys() <= LEGAL


async def replica(fleet: Fleet, name: str, **limits: float) -> RunningGateway:
    """A gateway without workers, whose limits are a minute where not given."""
    upstream = {"connect_timeout_s": 60.0, "first_byte_timeout_s": 60.0, "idle_timeout_s": 60.0}
    server = {"request_timeout_s": 60.0, "read_timeout_s": 60.0}
    return await fleet.gateway(
        upstream={key: limits.get(key, value) for key, value in upstream.items()},
        server={key: limits.get(key, value) for key, value in server.items()},
        fleet={"health_check_interval_s": 30.0},
        placement={"prefill_tokens_per_s": 2000.0},
        reliability={"retry_max_retries": 10, "disable_circuit_breaker": True},
        shared={"replica_id": name, "snapshot_interval_s": 3600.0, "heartbeat_ttl_s": 2.0},
    )


@pytest_asyncio.fixture(loop_scope="module")
async def tasks(stage: Stage) -> AsyncIterator[None]:
    """Whatever happens in a test, no task is left of it."""
    before = Counter(map(named, asyncio.all_tasks()))
    yield
    await until(lambda: not Counter(map(named, asyncio.all_tasks())) - before)


def named(task: asyncio.Task[Any]) -> str:
    return task.get_name().rstrip("0123456789")


@dataclass
class Course:
    """One request that stands somewhere."""

    stage: Stage
    gateway: RunningGateway
    at: At
    streamed: bool
    stack: contextlib.AsyncExitStack
    model: str = field(default_factory=lambda: f"model-{next(numbers)}")
    workers: list[ScriptedWorker] = field(default_factory=list)
    client: ScriptedClient = field(init=False)
    held: Held = field(init=False)

    @property
    def body(self) -> bytes:
        text = "x" * PROMPT_BYTES.get(self.at, 200_000)
        stream = "true" if self.streamed else "false"
        return (
            f'{{"model": "{self.model}", "messages": [{{"role": "user", "content": "{text}"}}], '
            f'"stream": {stream}}}'
        ).encode()

    @property
    def answer(self) -> bytes:
        """What a worker answers in full."""
        return 2 * PIECE if self.streamed else WHOLE

    def local(self, gateway: RunningGateway, worker: ScriptedWorker) -> LocalWorker | None:
        return gateway.process.registry.get(worker.worker_id)

    def reserved(self, gateway: RunningGateway) -> float:
        """Requests that a replica believes to be in flight on our workers."""
        locals_ = [self.local(gateway, worker) for worker in self.workers]
        inflight = gateway.process.fleet.loads.inflight_requests
        return sum(inflight.item(local.worker.slot) for local in locals_ if local is not None)

    async def add_worker(self, plan: scripted_worker.Plan = lambda: None) -> ScriptedWorker:
        """Start a worker for our model, and wait until every replica finds it well."""
        worker = await self.stack.enter_async_context(ScriptedWorker(self.model, plan))
        await self.introduce(worker)
        return worker

    async def introduce(self, worker: ScriptedWorker) -> None:
        self.workers.append(worker)
        self.gateway.process.registry.add(worker.url)
        self.stack.callback(self.gateway.process.registry.remove, worker.worker_id)
        for gateway in self.stage.gateways:
            await until(
                lambda gateway=gateway: (
                    (local := self.local(gateway, worker))  # type: ignore[misc]
                    and local.health is Health.HEALTHY
                    and local.models
                )
            )

    async def reach(self) -> None:
        """Send the request and wait until it stands where it should, and every replica knows."""
        step = WORKER_STEP.get(self.at)
        plan = None if step is None else (step, None)
        if self.at is At.PAUSING:
            plan = (Step.READ, Fault.CLOSE)
        worker = await self.add_worker(lambda: plan)
        self.client = await ScriptedClient.connect(self.gateway.process.settings.server.port)
        self.stack.callback(self.client.close)
        local = self.local(self.gateway, worker)
        assert local is not None
        pool = local.pool
        if self.at is At.RECEIVING:
            await self.client.send_half(self.body)
            return
        if self.at is At.CONNECTING:
            await worker.stop_accepting()
        self.client.send(self.body)
        if self.at is At.PAUSING:
            await until(lambda: worker.requests == 4 and not self.reserved(self.gateway))
            return
        if self.at is At.CONNECTING:
            await until(lambda: pool.waiting == 1 and pool._connecting)
        else:
            self.held = await asyncio.wait_for(worker.held.get(), 15)
        requests = self.gateway.process.fleet.loads.requests
        if self.at is At.PREDICTED:
            await until(lambda: any(r.prefilled for r in requests.values() if r.slot == local.worker.slot))
        elif self.at is At.HEADED:
            # Nothing shows from outside that the head has come.
            await until(lambda: any(connection._delivered for connection in pool._connections))
        elif self.at in SEEN:
            whole = len(self.answer)
            await self.client.receive(whole // 2 if self.at is At.BEGUN else whole - (not self.streamed))
        for gateway in self.stage.gateways:
            await until(lambda gateway=gateway: self.reserved(gateway) == 1)  # type: ignore[misc]


@contextlib.asynccontextmanager
async def course(stage: Stage, gateway: RunningGateway, at: At, streamed: bool) -> AsyncIterator[Course]:
    """A request that stands at a step; its workers are gone in the end."""
    async with contextlib.AsyncExitStack() as stack:
        course = Course(stage, gateway, at, streamed, stack)
        await course.reach()
        yield course


def cases(*steps: At) -> list[Any]:
    """Steps for both kinds of answers; the prediction counts only where no first byte can be seen."""
    return [
        pytest.param(at, streamed, id=f"{at.name}-{'stream' if streamed else 'whole'}")
        for at in steps
        for streamed in (True, False)
        if at is not At.PREDICTED or not streamed
    ]


def failed(at: At) -> str:
    """The course of an attempt that failed before its first byte."""
    return PREDICTED_ONLY if at is At.PREDICTED else TAKEN_BACK


# The client's leg.


@pytest.mark.parametrize("leg", ["closes", "resets"])
@pytest.mark.parametrize(("at", "streamed"), cases(*At))
async def test_a_client_that_goes_frees_its_worker_and_its_load(
    stage: Stage, tasks: None, at: At, streamed: bool, leg: str
) -> None:
    async with course(stage, stage.calm, at, streamed) as request:
        if leg == "closes":
            request.client.close()
        else:
            request.client.reset()
        if at in WORKER_STEP:
            await request.held.dropped()
        expected = {
            At.RECEIVING: [],
            At.PREDICTED: [ANSWERED],  # the worker holds its blocks, as far as one can know
            At.BEGUN: [ANSWERED],
            At.LAST: [ANSWERED],
            At.PAUSING: 4 * [TAKEN_BACK],
        }
        await stage.say(expected.get(at, [TAKEN_BACK]), *request.workers)


# The worker's leg.

FAULTS = {
    Fault.CLOSE: (*UNSEEN, *SEEN),
    Fault.RESET: (*UNSEEN, *SEEN),
    Fault.STATUS_500: (At.SENDING, At.SENT, At.PREDICTED),
    Fault.STATUS_503: (At.SENDING, At.SENT, At.PREDICTED),
    Fault.GARBAGE: (At.SENDING, At.SENT, At.PREDICTED),
}


async def check_failure(request: Course, code: str = "upstream_stream_broken") -> None:
    """What a client gets when its worker failed, with another one at hand."""
    client = await request.client.finished()
    if request.at not in SEEN:
        assert (client.status, client.complete, client.body) == (200, True, request.answer)
        await request.stage.say([failed(request.at), ANSWERED], *request.workers)
        return
    if request.streamed:
        assert (client.status, client.complete, client.error["code"]) == (200, True, code)
    else:
        assert not client.complete
        assert request.answer.startswith(client.body)
    await request.stage.say([ANSWERED], *request.workers)


@pytest.mark.parametrize(
    ("fault", "at", "streamed"),
    [
        pytest.param(fault, *case.values, id=f"{fault.name}-{case.id}")
        for fault, steps in FAULTS.items()
        for case in cases(*steps)
    ]
    + [
        pytest.param(Fault.GARBAGE, at, True, id=f"GARBAGE-{at.name}-stream")
        for at in (At.HEADED, At.BEGUN, At.LAST)
    ],
)
async def test_a_worker_that_fails_before_the_first_byte_is_replaced_and_after_it_breaks_the_answer(
    stage: Stage, tasks: None, fault: Fault, at: At, streamed: bool
) -> None:
    async with course(stage, stage.calm, at, streamed) as request:
        await request.add_worker()
        request.held.then(fault)
        await check_failure(request)


@pytest.mark.parametrize(("at", "streamed"), cases(At.CONNECTING))
async def test_a_worker_that_ends_before_it_accepted_is_replaced(
    stage: Stage, tasks: None, at: At, streamed: bool
) -> None:
    async with course(stage, stage.calm, at, streamed) as request:
        await request.add_worker()
        await request.workers[0].die()
        await check_failure(request)


@pytest.mark.parametrize(
    ("at", "streamed"),
    [
        case
        for case in cases(At.CONNECTING, *UNSEEN, *SEEN)
        # An answer that comes whole may take as long as it takes to decode: there the deadline decides.
        if case.values[1] or case.values[0] in (At.CONNECTING, *SEEN)
    ],
)
async def test_a_worker_that_falls_silent_is_given_up(
    stage: Stage, tasks: None, at: At, streamed: bool
) -> None:
    async with course(stage, stage.strict, at, streamed) as request:
        await request.add_worker()
        await check_failure(request, "upstream_idle_timeout")
