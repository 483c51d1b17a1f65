"""Replicas that watch each other, and requests that stand at a given step of their course.

    reach: client --> serving replica --> worker            everything up to the step has happened, and
                           `--> log --> every replica       every replica knows the reservations

From there a test breaks one leg, and `Stage.say` waits for the expected entries of the log and for the
release of everything reserved or in use, in every replica.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from enum import StrEnum
from typing import Any

import httpx
from fakes.journal import Journal, ends_told
from fakes.running import Fleet, RunningGateway, until, until_async
from fakes.scripted_client import ScriptedClient
from fakes.scripted_worker import PIECE, WHOLE, Fault, Held, Plan, ScriptedWorker, Step, WorkerProcess
from redis.asyncio import Redis

from router.fleet import Health
from router.shared import EmbeddedValkey

Worker = ScriptedWorker | WorkerProcess


class At(StrEnum):
    """Position of a request."""

    RECEIVING = "half of the client's body has come"
    CONNECTING = "placed, and the worker does not accept"
    SENDING = "the worker has the head, and reads no more of a large body"
    SENT = "the worker has all of it, and the prefill timer runs"
    PREDICTED = "the worker has all of it, and the prefill timer has run out"
    HEADED = "the head of the answer has come"
    BEGUN = "the first piece of the answer has come"
    LAST = "only the end of the answer is missing"
    PAUSING = "four attempts failed, and the only worker is given a pause (of 0.8 s)"


WORKER_STEP = {
    At.SENDING: Step.ACCEPTED,
    At.SENT: Step.READ,
    At.PREDICTED: Step.READ,
    At.HEADED: Step.HEADED,
    At.BEGUN: Step.BEGUN,
    At.LAST: Step.LAST,
}
"""Position of the request at a worker."""

SEEN = (At.BEGUN, At.LAST)
"""The client has seen a part of the answer."""

PROMPT_BYTES = {At.PREDICTED: 1_100, At.SENDING: 8_000_000}
"""At 2,000 tokens/s the prefill of 200,000 bytes is predicted to take 25 s, that of 1,100 bytes 0.16 s; and
8 MB are more than the sockets between gateway and worker hold."""

MINUTE = {
    "upstream": {"connect_timeout_s": 60.0, "first_byte_timeout_s": 60.0, "idle_timeout_s": 60.0},
    "server": {"request_timeout_s": 60.0, "read_timeout_s": 60.0},
}

_numbers = itertools.count()


class Stage:
    """Replicas on one Valkey that differ only in their patience."""

    def __init__(self, valkey: EmbeddedValkey, fleet: Fleet, journal: Journal) -> None:
        self.valkey = valkey
        self.fleet = fleet
        self.journal = journal
        self.replicas: dict[str, RunningGateway] = {}

    async def add_replica(self, name: str, **limits: float) -> None:
        """Start a replica without workers; a limit that is not given is a minute."""
        sections = {
            section: {key: limits.get(key, value) for key, value in values.items()}
            for section, values in MINUTE.items()
        }
        self.replicas[name] = await self.fleet.gateway(
            **sections,
            fleet={"health_check_interval_s": 30.0},
            placement={"prefill_tokens_per_s": 2000.0},
            reliability={"retry_max_retries": 10, "disable_circuit_breaker": True},
            shared={"replica_id": name, "snapshot_interval_s": 3600.0, "heartbeat_ttl_s": 2.0},
        )

    async def introduce(self, worker: Worker) -> None:
        """Add a worker and wait until every replica finds it well."""
        await self.journal.introduce(worker.worker_id)
        self.any.process.registry.add(worker.url)
        for gateway in self.replicas.values():
            registry = gateway.process.registry
            await until(
                lambda registry=registry: (
                    (local := registry.get(worker.worker_id))  # type: ignore[misc]
                    and local.health is Health.HEALTHY
                    and local.models
                )
            )

    @property
    def any(self) -> RunningGateway:
        """Some replica."""
        return next(iter(self.replicas.values()))

    def dismiss(self, worker: Worker) -> None:
        """Remove a worker."""
        self.any.process.registry.remove(worker.worker_id)

    def reserved(self, gateway: RunningGateway, workers: Iterable[Worker]) -> tuple[float, float]:
        """Requests that a replica believes in flight on some workers, and those of them in prefill."""
        fleet = gateway.process.fleet
        ids = {worker.worker_id for worker in workers}
        slots = [worker.slot for worker in fleet.workers() if worker.worker_id in ids]
        loads = fleet.loads
        return loads.inflight_requests[slots].sum(), loads.prefill_requests[slots].sum()

    async def courses(self, workers: Iterable[Worker] | None = None) -> list[str]:
        """Log entries on the attempts on some workers, or on all."""
        return await self.journal.courses(workers and [worker.worker_id for worker in workers])

    async def say(self, expected: list[str], workers: Iterable[Worker]) -> None:
        """Wait until the log has the expected entries, and every replica has nothing left of the request."""
        with contextlib.suppress(TimeoutError):
            await until_async(lambda: self._says(expected, workers))
        said = await self.courses(workers)
        assert said == expected, f"{said} instead of {expected}"
        await self.idle()

    async def _says(self, expected: list[str], workers: Iterable[Worker]) -> bool:
        return await self.courses(workers) == expected

    async def shares(self) -> None:
        """Wait until all replicas share all their facts."""
        for gateway in self.replicas.values():
            shared = gateway.process.shared
            await until(lambda shared=shared: shared.status.ready and shared.status.connected)  # type: ignore[misc]

    async def idle(self) -> None:
        """Wait until no replica has anything reserved or in use."""
        for gateway in self.replicas.values():
            await until(gateway.idle)
            loads = gateway.process.fleet.loads
            assert not loads.prefill_tokens.any()
            assert not loads.inflight_requests.any()
            for local in gateway.process.registry.all():
                assert (local.pool.waiting, local.pool.in_use) == (0, 0)


@contextlib.asynccontextmanager
async def open_stage(namespace: str, **replicas: dict[str, float]) -> AsyncIterator[Stage]:
    """A Valkey, and replicas with these limits. In the end nothing is reserved or in use."""
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(ends_told())
        valkey = await stack.enter_async_context(EmbeddedValkey())
        redis = await stack.enter_async_context(Redis.from_url(valkey.url, protocol=2, socket_timeout=None))
        stage = Stage(valkey, Fleet(valkey.url, namespace, stack), Journal(redis, namespace))
        for name, limits in replicas.items():
            await stage.add_replica(name, **limits)
        await stage.shares()
        yield stage
        await stage.idle()


@contextlib.asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """Wait in the end until there are no tasks that were not there before."""
    before = _tasks()
    yield
    await until(lambda: not _tasks() - before)


def _tasks() -> Counter[str]:
    return Counter(task.get_name().rstrip("0123456789") for task in asyncio.all_tasks())


class Course:
    """One request on its way; see `course`."""

    def __init__(
        self,
        stage: Stage,
        stack: contextlib.AsyncExitStack,
        replica: str | int,
        at: At,
        *,
        streamed: bool,
    ) -> None:
        self.stage = stage
        self.at = at
        self.streamed = streamed
        self.model = f"model-{next(_numbers)}"
        self.workers: list[Worker] = []
        self.answer = 2 * PIECE if streamed else WHOLE
        self.body = chat(self.model, "x" * PROMPT_BYTES.get(at, 200_000), streamed=streamed)
        self.client: ScriptedClient
        self.held: Held | None = None
        self._stack = stack
        self._serving: RunningGateway | None = None
        if isinstance(replica, str):
            self._serving = stage.replicas[replica]
            replica = self._serving.process.settings.server.port
        self._port = replica

    async def add_worker(self, plan: Plan = lambda: None) -> ScriptedWorker:
        """Start a worker for our model."""
        worker = await self._stack.enter_async_context(ScriptedWorker(self.model, plan))
        await self._add(worker)
        return worker

    async def add_process(self) -> WorkerProcess:
        """Start a worker in a process of its own, which holds our request at its step."""
        worker = await self._stack.enter_async_context(WorkerProcess(self.model, WORKER_STEP[self.at]))
        await self._add(worker)
        return worker

    async def _add(self, worker: Worker) -> None:
        self.workers.append(worker)
        self._stack.callback(self.stage.dismiss, worker)
        await self.stage.introduce(worker)
        if self._serving is None:
            await until_async(self._served)

    async def _served(self) -> bool:
        """True if the replica in another process has found our worker well."""
        async with httpx.AsyncClient(trust_env=False) as client:
            listed = (await client.get(f"http://127.0.0.1:{self._port}/v1/models")).json()["data"]
        return any(model["id"] == self.model for model in listed)

    async def reach(self, worker: Worker | None = None) -> None:
        """Send the request and wait until it stands where it should, and every replica knows.

        Args:
            worker: That holds it there; None to start one.
        """
        if worker is None:
            plan: Any = (WORKER_STEP[self.at], None) if self.at in WORKER_STEP else None
            if self.at is At.PAUSING:
                plan = (Step.READ, Fault.CLOSE)
            worker = await self.add_worker(lambda: plan)
        self.client = await ScriptedClient.connect(self._port)
        self._stack.callback(self.client.close)
        if self.at is At.RECEIVING:
            await self.client.send_half(self.body)
            return
        if self.at is At.CONNECTING:
            assert isinstance(worker, ScriptedWorker)
            await worker.stop_accepting()
        self.client.send(self.body)
        if self.at is At.PAUSING:
            await until_async(self._paused)
            return
        if self.at in WORKER_STEP:
            self.held = await asyncio.wait_for(worker.held.get(), 15)
        if self.at in SEEN:
            whole = len(self.answer)
            await self.client.receive(whole // 2 if self.at is At.BEGUN else whole - (not self.streamed))
        if self._serving is not None:
            local = self._serving.process.registry.get(worker.worker_id)
            assert local is not None
            if self.at is At.CONNECTING:
                await until(lambda: local.pool.waiting == 1 and local.pool._connecting)
            elif self.at is At.HEADED:
                # Nothing shows from outside that the head has come.
                await until(lambda: any(connection._delivered for connection in local.pool._connections))
        prefilling = self.at not in (At.PREDICTED, *SEEN)
        for gateway in self.stage.replicas.values():
            await until(
                lambda gateway=gateway: (  # type: ignore[misc]
                    self.stage.reserved(gateway, self.workers) == (1, prefilling)
                )
            )

    async def _paused(self) -> bool:
        said = await self.stage.courses(self.workers)
        return len(said) >= 4 and all(course.endswith("trim") for course in said)


@contextlib.asynccontextmanager
async def course(
    stage: Stage, replica: str | int, at: At, *, streamed: bool, process: bool = False
) -> AsyncIterator[Course]:
    """Send a request to a replica and hold it at a step; remove its workers in the end.

    Args:
        stage: Its stage.
        replica: Name of the replica that serves it, or the port of one that is a process of its own.
        at: The step.
        streamed: True if it asks for a stream.
        process: True if its worker is a process of its own.
    """
    async with contextlib.AsyncExitStack() as stack:
        course = Course(stage, stack, replica, at, streamed=streamed)
        await course.reach(await course.add_process() if process else None)
        yield course


def chat(model: str, text: str, *, streamed: bool) -> bytes:
    """A chat request."""
    stream = "true" if streamed else "false"
    message = f'{{"role": "user", "content": "{text}"}}'
    return f'{{"model": "{model}", "messages": [{message}], "stream": {stream}}}'.encode()
