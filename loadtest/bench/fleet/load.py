"""Agents in a closed loop or conversations as they arrived, through replicas of a router.

A child (`loadtest.bench.child`): it gets a `FleetLoad`, reads the trace, says ``true``, waits for the ports
of the router, sends to replicas in turn, and says a `FleetLoadReport` at the end. An agent that has done its
session begins the next; after `FleetLoad.seconds` of trace time it only waits for answers under way.
"""

import asyncio
import gc
import itertools
import time
from collections import Counter
from pathlib import Path

import httptools
import msgspec

from loadtest.bench.child import heard, say
from loadtest.bench.fleet.script import (
    AGENT_BLOCK_TOKENS,
    CONVERSATION_BLOCK_TOKENS,
    Ask,
    Ideal,
    Session,
    Texts,
    Work,
)
from router.open_files import raise_open_files

OUTPUT_TOKENS_MAX = 64
START_GAP_S = 0.25
"""Trace time between the starts of two agents."""

ANSWER_TIMEOUT_S = 120.0


class FleetLoad(msgspec.Struct, frozen=True):
    """Load of one run.

    Attributes:
        work: Path of a file with the `Work`, in MessagePack.
        users: Agents at work at the same time; 0 for conversations as they arrived.
        seconds: Trace time in which requests are sent.
        speed: Trace seconds in a second.
    """

    work: str
    users: int
    seconds: float
    speed: float


class FleetLoadReport(msgspec.Struct, frozen=True):
    """Results; times in trace seconds.

    Attributes:
        ideal_hit_ratio: Hit ratio of one infinite cache.
        late_s: Mean time from when a request was due to when it was sent.
        wall_s: Real time of all.
        cpu_s: CPU of the load generator in that time.
    """

    ttft_s: list[float]
    problems: dict[str, int]
    ideal_hit_ratio: float
    late_s: float
    wall_s: float
    cpu_s: float


class _Connection(asyncio.Protocol):
    """A connection to a router with at most one request on it."""

    def __init__(self) -> None:
        self.done: asyncio.Future[tuple[int, float | None]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def ask(self, prompt: bytes, output_tokens: int) -> "asyncio.Future[tuple[int, float | None]]":
        """Send a request; the result is the status and the monotonic time of the first byte of the body."""
        self._first_s: float | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.done = asyncio.get_running_loop().create_future()
        head, tail = b'{"model":"mock","stream":true,"max_tokens":%d,"temperature":0,"messages":', b'"}]}'
        opening = head % output_tokens + b'[{"role":"user","content":"'
        length = len(opening) + len(prompt) + len(tail)
        request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
        self.transport.writelines([request, b"content-length: %d\r\n\r\n" % length, opening, prompt, tail])
        return self.done

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done and not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("connection closed"))

    def on_body(self, _: bytes) -> None:
        if self._first_s is None:
            self._first_s = time.perf_counter()

    def on_message_complete(self) -> None:
        assert self.done is not None, "an answer without a request"
        if not self.done.done():
            self.done.set_result((self._parser.get_status_code(), self._first_s))


class Load:
    """Sends the requests of one plan to routers in turn."""

    def __init__(self, plan: FleetLoad, ports: list[int]) -> None:
        self._plan = plan
        self._ports = itertools.cycle(ports)
        self._idle: dict[int, list[_Connection]] = {port: [] for port in ports}
        self._ttft_s: list[float] = []
        self._problems: Counter[str] = Counter()
        self._ideal = Ideal()
        self._late_s: list[float] = []

    async def run(self, sessions: list[Session], arrivals: list[Ask]) -> FleetLoadReport:
        """Send everything and wait for all answers."""
        plan = self._plan
        self._began_s, cpu_s = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as tasks:
            for number in range(plan.users):
                tasks.create_task(self._agent(number, sessions), name=f"agent-{number}")
            if arrivals:
                self._texts, seen = Texts("c", CONVERSATION_BLOCK_TOKENS), set[int]()
                for number, ask in enumerate(arrivals):
                    self._ideal.count(ask.block_ids, seen)
                    tasks.create_task(self._arrival(ask), name=f"conversation-{number}")
        for connections in self._idle.values():
            for connection in connections:
                connection.transport.close()
        return FleetLoadReport(
            ttft_s=self._ttft_s,
            problems=dict(self._problems),
            ideal_hit_ratio=self._ideal.ratio,
            late_s=sum(self._late_s) / max(1, len(self._late_s)),
            wall_s=time.perf_counter() - self._began_s,
            cpu_s=time.process_time() - cpu_s,
        )

    async def _agent(self, number: int, sessions: list[Session]) -> None:
        plan = self._plan
        await asyncio.sleep(number * START_GAP_S / plan.speed)
        end_s = self._began_s + plan.seconds / plan.speed
        while sessions and time.perf_counter() < end_s:
            session = sessions.pop()
            texts, seen = Texts(session.name, AGENT_BLOCK_TOKENS), set[int]()
            for ask in session.asks:
                prompt = texts.prompt(ask.block_ids)
                due_s = time.perf_counter() + ask.wait_s / plan.speed
                await self._sleep_until(due_s)
                if time.perf_counter() > end_s:
                    return
                self._ideal.count(ask.block_ids, seen)
                await self._ask(prompt, ask.output_tokens)

    async def _arrival(self, ask: Ask) -> None:
        await self._sleep_until(self._began_s + ask.wait_s / self._plan.speed)
        await self._ask(self._texts.prompt(ask.block_ids), ask.output_tokens)

    async def _connection(self, port: int) -> _Connection:
        """A connection that was kept and that the router has not closed meanwhile, or a new one."""
        idle = self._idle[port]
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", port)
        return connection

    async def _sleep_until(self, due_s: float) -> None:
        await asyncio.sleep(due_s - time.perf_counter())
        self._late_s.append(max(0.0, time.perf_counter() - due_s) * self._plan.speed)

    async def _ask(self, prompt: bytes, output_tokens: int) -> None:
        port = next(self._ports)
        sent_s = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                connection = await self._connection(port)
                status, first_s = await connection.ask(prompt, max(1, min(output_tokens, OUTPUT_TOKENS_MAX)))
        except (OSError, TimeoutError) as error:
            self._problems[repr(error)] += 1
            return
        if not connection.transport.is_closing():
            self._idle[port].append(connection)
        if status == 200 and first_s is not None:
            self._ttft_s.append((first_s - sent_s) * self._plan.speed)
        else:
            self._problems[f"status {status}"] += 1


async def drive(plan: FleetLoad) -> None:
    """Read the work and say so; then hear the gateways' ports, run the load and say its report."""
    raise_open_files(0)
    gc.disable()  # all that is read stays, and looking through it again and again takes seconds
    work = msgspec.msgpack.decode(Path(plan.work).read_bytes(), type=Work)  # noqa: ASYNC240 - before all else
    say(True)  # noqa: FBT003 - ready
    if ports := heard(list[int]):
        say(await Load(plan, ports).run(work.sessions, work.arrivals))
