"""Load is released exactly once, for a break of any leg of a request at any step.

    client ──leg──> gateway ──leg──> worker         each cut at every step of a request, in every way
                       └─────leg──> Valkey

Client, worker and gateway are real sockets; one replica serves, the others only read the log. The judges are
the log itself (`fakes.journal`) and every replica's fold of it: in the end every column of every fold is
zero, no connection is in use, and no task is left (`fakes.stage`).
"""

import asyncio
import contextlib
import functools
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from fakes.journal import ANSWERED, LEGAL, PREDICTED_ONLY, TAKEN_BACK
from fakes.running import command, until, until_async
from fakes.scripted_client import ScriptedClient
from fakes.scripted_worker import Fault, ScriptedWorker, Step
from fakes.stage import SEEN, At, Course, Stage, chat, course, no_task_left, open_stage

from loadtest.processes import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNSEEN = (At.SENDING, At.SENT, At.PREDICTED, At.HEADED)
"""The worker is busy with it, and the client has seen nothing."""

STRICT = dict.fromkeys(("connect_timeout_s", "first_byte_timeout_s", "idle_timeout_s"), 1.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_stage() -> AsyncIterator[Stage]:
    """Three replicas: ``calm`` acts only on events; the other two have limits.

    ``strict`` gives a worker a second, and ``hasty`` gives a request 2.2 s: that is in the pause after
    the fifth attempt, 1.5 to 3.1 s after the first.
    """
    async with open_stage(
        "legs", calm={}, strict=STRICT, hasty={"request_timeout_s": 2.2, "read_timeout_s": 2.2}
    ) as stage:
        yield stage
        assert set(await stage.courses()) <= LEGAL


@pytest_asyncio.fixture(loop_scope="module")
async def stage(shared_stage: Stage) -> AsyncIterator[Stage]:
    """The replicas; after each test, no task of it is left."""
    async with no_task_left():
        yield shared_stage


def cases(*steps: At, streams: tuple[bool, ...] = (True, False)) -> list[Any]:
    """Steps for both kinds of answers; the prediction counts only where no first byte can be seen."""
    return [
        pytest.param(at, streamed, id=f"{at.name}-{'stream' if streamed else 'whole'}")
        for at in steps
        for streamed in streams
        if at is not At.PREDICTED or not streamed
    ]


def failed(at: At) -> str:
    """The course of an attempt that failed before its first byte."""
    return PREDICTED_ONLY if at is At.PREDICTED else TAKEN_BACK


# The client's leg.


@pytest.mark.parametrize("leg", ["close", "reset"])
@pytest.mark.parametrize(("at", "streamed"), cases(*At))
async def test_a_client_that_goes_frees_its_worker_and_its_load(
    stage: Stage, at: At, streamed: bool, leg: str
) -> None:
    async with course(stage, "calm", at, streamed=streamed) as request:
        getattr(request.client, leg)()
        if request.held is not None:
            await request.held.dropped()
        expected = {
            At.RECEIVING: [],
            At.PREDICTED: [ANSWERED],  # as far as a replica can know, the worker holds its blocks
            At.BEGUN: [ANSWERED],
            At.LAST: [ANSWERED],
            At.PAUSING: 4 * [TAKEN_BACK],
        }
        await stage.say(expected.get(at, [TAKEN_BACK]), request.workers)


# The worker's leg.


async def check_failure(request: Course, code: str = "upstream_stream_broken") -> None:
    """Check the client's answer after its worker failed, with another worker at hand."""
    client = await request.client.finished()
    if request.at not in SEEN:
        assert (client.status, client.complete, client.body) == (200, True, request.answer)
        await request.stage.say([failed(request.at), ANSWERED], request.workers)
        return
    if request.streamed:
        assert (client.status, client.complete, client.error["code"]) == (200, True, code)
    else:
        assert not client.complete
        assert request.answer.startswith(client.body)
    await request.stage.say([ANSWERED], request.workers)


EARLY = (At.SENDING, At.SENT, At.PREDICTED)

FAULTS = {
    Fault.CLOSE: cases(*UNSEEN, *SEEN),
    Fault.RESET: cases(*UNSEEN, *SEEN),
    Fault.STATUS_500: cases(*EARLY),
    Fault.STATUS_503: cases(*EARLY),
    # In a body of declared length there is no garbage.
    Fault.GARBAGE: cases(*EARLY) + cases(At.HEADED, *SEEN, streams=(True,)),
}


@pytest.mark.parametrize(
    ("fault", "at", "streamed"),
    [
        pytest.param(fault, *case.values, id=f"{fault.name}-{case.id}")
        for fault, some in FAULTS.items()
        for case in some
    ],
)
async def test_a_worker_that_fails_is_replaced_before_the_first_byte_and_breaks_the_answer_after_it(
    stage: Stage, fault: Fault, at: At, streamed: bool
) -> None:
    async with course(stage, "calm", at, streamed=streamed) as request:
        await request.add_worker()
        assert request.held is not None
        request.held.then(fault)
        await check_failure(request)


@pytest.mark.parametrize(("at", "streamed"), cases(*UNSEEN, *SEEN))
async def test_a_worker_that_is_killed_releases_as_one_that_fails(
    stage: Stage, at: At, streamed: bool
) -> None:
    async with course(stage, "calm", at, streamed=streamed, process=True) as request:
        await request.add_worker()
        (killed, _) = request.workers
        await killed.kill()  # type: ignore[union-attr] - it is a process
        await check_failure(request)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_worker_that_ends_before_it_accepted_is_replaced(stage: Stage, streamed: bool) -> None:
    async with course(stage, "calm", At.CONNECTING, streamed=streamed) as request:
        survivor = await request.add_worker()
        (dead, _) = request.workers
        assert isinstance(dead, ScriptedWorker)
        await dead.die()
        await check_failure(request)
        assert survivor.requests == 1


@pytest.mark.parametrize(
    ("at", "streamed"),
    # A whole answer may take as long as its decode: before it, the deadline decides.
    [*cases(At.CONNECTING, At.SENDING, *SEEN), *cases(At.SENT, At.HEADED, streams=(True,))],
)
async def test_a_worker_that_falls_silent_is_given_up(stage: Stage, at: At, streamed: bool) -> None:
    async with course(stage, "strict", at, streamed=streamed) as request:
        await request.add_worker()
        await check_failure(request, "upstream_idle_timeout")


# Client and worker at once, and neither.


@pytest.mark.parametrize("order", [1, -1], ids=["client-first", "worker-first"])
@pytest.mark.parametrize(("at", "streamed"), cases(*UNSEEN, *SEEN))
async def test_a_client_and_a_worker_that_go_in_the_same_moment_release_once(
    stage: Stage, at: At, streamed: bool, order: int
) -> None:
    """If the gateway hears of the worker first, there is a second attempt, which the client's end ends."""
    async with course(stage, "calm", at, streamed=streamed) as request:
        await request.add_worker()
        assert request.held is not None
        for end in (request.client.reset, functools.partial(request.held.then, Fault.RESET))[::order]:
            end()

        async def released() -> bool:
            said = await stage.courses(request.workers)
            return all("finished" in course for course in said)

        await until_async(released)
        await stage.idle()
        first, *second = await stage.courses(request.workers)
        assert first == ANSWERED if at in SEEN else first in (failed(at), ANSWERED)
        assert second in ([], [TAKEN_BACK])


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_deadline_that_passes_at_any_step_releases(stage: Stage, streamed: bool) -> None:
    async def one(at: At) -> None:
        async with course(stage, "hasty", at, streamed=streamed) as request:
            client = await request.client.finished()
            if at in SEEN and not streamed:
                assert not client.complete
            else:
                status = {At.RECEIVING: 408, **dict.fromkeys(SEEN, 200)}.get(at, 504)
                assert (client.status, client.complete) == (status, True)
                assert client.error["code"] == "request_timeout"
            expected = {
                At.RECEIVING: [],
                At.BEGUN: [ANSWERED],
                At.LAST: [ANSWERED],
                At.PAUSING: len(await stage.courses(request.workers)) * [TAKEN_BACK],
            }
            await stage.say(expected.get(at, [failed(at)]), request.workers)

    await asyncio.gather(*(one(case.values[0]) for case in cases(*At, streams=(streamed,))))


# The replica itself, and its leg to the log.


@contextlib.asynccontextmanager
async def all_courses(stage: Stage, replica: str | int, *steps: At) -> AsyncIterator[list[Course]]:
    """A request of each kind at each of these steps."""
    async with contextlib.AsyncExitStack() as stack:
        yield await asyncio.gather(
            *(
                stack.enter_async_context(course(stage, replica, at, streamed=streamed))
                for at, streamed in (case.values for case in cases(*steps))
            )
        )


async def test_what_a_killed_replica_had_in_flight_is_released_by_its_siblings(
    stage: Stage, namespace: str
) -> None:
    """A request at every step; one that was not placed leaves no trace. Load vectors show first tokens."""
    port = free_port()
    arguments = ("--host", "127.0.0.1", "--port", str(port), "--redis-url", stage.fleet.redis_url)
    limits = ("--heartbeat-ttl-secs", "2", "--prefill-tokens-per-s", "2000")
    async with (
        command(
            *("serve", *arguments, "--namespace", stage.fleet.namespace, *limits),
            ready_url=f"http://127.0.0.1:{port}/health",
        ) as replica,
        all_courses(stage, port, At.RECEIVING, At.CONNECTING, *UNSEEN, *SEEN) as requests,
    ):
        replica.kill()
        clients = await asyncio.gather(*(request.client.finished() for request in requests))
        assert not any(client.complete for client in clients)
        await asyncio.gather(*(request.held.dropped() for request in requests if request.held))
        for request in requests:
            expected = [] if request.at is At.RECEIVING else ["placed left"]
            await stage.say(expected, request.workers)


def pause_valkey(stage: Stage) -> Callable[[], None]:
    """Stop it in its tracks; return a function that wakes it."""
    os.kill(stage.valkey.pid, signal.SIGSTOP)
    return functools.partial(os.kill, stage.valkey.pid, signal.SIGCONT)


def kill_valkey(stage: Stage) -> Callable[[], None]:
    """Kill it; it comes back empty by itself."""
    os.kill(stage.valkey.pid, signal.SIGKILL)
    return lambda: None


@pytest.mark.parametrize("outage", [pause_valkey, kill_valkey])
async def test_what_ends_while_the_log_is_away_is_released_here_at_once_and_everywhere_afterwards(
    outage: Callable[[Stage], Callable[[], None]],
) -> None:
    """At each step one request is left by its client and one goes on; no request waits for Valkey."""
    async with (
        no_task_left(),
        open_stage("outage", serving={}, witness={}) as stage,
        all_courses(stage, "serving", At.RECEIVING, At.CONNECTING, *UNSEEN, *SEEN) as requests,
    ):
        serving = stage.replicas["serving"]
        comes_back = outage(stage)
        try:
            await until(lambda: serving.process.shared.status.degraded_reason)
            for request in requests:
                if request.at is At.RECEIVING and request.streamed:
                    request.client.send_rest(request.body)
                elif request.held is None or request.streamed:
                    request.client.reset()
                else:
                    request.held.then(Fault.GO)
                    client = await request.client.finished()
                    assert (client.complete, client.body) == (True, request.answer)
            await until(serving.idle)
        finally:
            comes_back()
        await stage.shares()
        if outage is kill_valkey:
            await stage.idle()
            return
        for request in requests:
            left_before = request.streamed and request.at not in SEEN
            expected = {
                (At.RECEIVING, True): [ANSWERED],
                (At.RECEIVING, False): [],
                (At.CONNECTING, False): [TAKEN_BACK],
            }.get((request.at, request.streamed), [TAKEN_BACK if left_before else ANSWERED])
            await stage.say(expected, request.workers)


# Anything.


@pytest.mark.parametrize("seed", [1])
async def test_random_faults_at_random_steps_release_every_attempt_once(seed: int) -> None:
    """300 requests, 24 at a time, over two replicas and four workers; half of all attempts fail."""
    chance = random.Random(seed)
    limits = dict.fromkeys(STRICT, 0.3) | {"request_timeout_s": 1.0, "read_timeout_s": 1.0}
    faults = [fault for fault in Fault if fault is not Fault.GO]

    def plan() -> tuple[Step, Fault] | None:
        return (chance.choice(list(Step)), chance.choice(faults)) if chance.random() < 0.5 else None

    async with no_task_left(), open_stage("random", one=limits, other=limits) as stage:
        ports = [gateway.process.settings.server.port for gateway in stage.replicas.values()]
        clients: list[ScriptedClient] = []

        async def one_request(text_bytes: int, port: int, streamed: bool, goes: str, after_s: float) -> None:
            client = await ScriptedClient.connect(port)
            clients.append(client)
            body = chat("model", f"{chance.randrange(50)}" + "x" * text_bytes, streamed=streamed)
            if goes == "half":
                await client.send_half(body)
            else:
                client.send(body)
            if goes == "stays":
                await client.finished()
            else:
                await asyncio.sleep(after_s)  # deliberate: the time of leaving is part of the draw
                client.reset() if chance.random() < 0.5 else client.close()

        async def requests(count: int) -> None:
            for _ in range(count):
                await one_request(
                    chance.choice((10, 1_100, 50_000, 2_000_000)),
                    chance.choice(ports),
                    chance.random() < 0.5,
                    chance.choice(("stays", "stays", "goes", "goes", "half")),
                    chance.random() * 0.1,
                )

        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                worker = await stack.enter_async_context(ScriptedWorker("model", plan))
                await stage.introduce(worker)
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                for _ in range(24):
                    group.create_task(requests(300 // 24))
            await stage.idle()
        said = Counter(await stage.courses())
        assert said.keys() <= LEGAL
        assert min(said[ANSWERED], said[TAKEN_BACK], sum(client.complete for client in clients)) > 10
