"""Load generator on raw protocols that checks every byte of every answer.

A child (`loadtest.bench.child`): it gets a `LoadPlan`, sends chat requests to a gateway in front of
`loadtest.bench.mock_engine`, and says a `LoadReport` every half second. When the planned requests are done,
or its input ends, it waits for the answers in flight, says a last report and ends.

    rate_per_s = 0    closed loop: every connection sends its next request when it has its answer
    rate_per_s > 0    open loop: a request starts when it is due, on an idle connection or a new one

Each answer is known beforehand, and compared by length and CRC-32: a lost, repeated, reordered or foreign
chunk makes the request *broken*, as does a status other than 200 or a connection that ends early.
"""

import asyncio
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field

import httptools
import msgspec

from loadtest.bench.child import input_ended, say
from loadtest.bench.mock_engine import MODEL, prompt_tokens_of, streamed_answer, whole_answer
from router.open_files import raise_open_files

REPORT_S = 0.5
STOP_TIMEOUT_S = 60.0
SHARED_HEADS = 50
"""Number of different first halves of prompts, such as system prompts."""


class LoadPlan(msgspec.Struct, frozen=True):
    """Load on a gateway at ``port`` of 127.0.0.1.

    Attributes:
        connections: Most at a time.
        requests: In all; 0 for no limit but the end of the input.
        rate_per_s: Starts per second; 0 for a closed loop.
        chunks: Chunks of a streamed answer; 0 for an answer in one piece.
        distinct: Number of different prompts.
    """

    port: int
    connections: int
    requests: int = 0
    rate_per_s: float = 0.0
    chunks: int = 0
    prompt_bytes: int = 1024
    distinct: int = 1
    model: str = MODEL


class LoadReport(msgspec.Struct, frozen=True):
    """Counts since the start of a load.

    Attributes:
        at_s: Monotonic seconds.
        answering: Answers that have begun and not ended.
        held_back: Requests of an open loop that were due and found no connection.
        reads_s: Monotonic times of the reads since the last report, if there is one connection.
    """

    at_s: float
    answering: int
    completed: int
    broken: int
    body_bytes: int
    held_back: int
    problems: dict[str, int]
    reads_s: list[float] = []


def prompt(number: int, plan: LoadPlan) -> str:
    """The prompt of a request: half of it shared with many, half with those of its kind."""
    kind = number % plan.distinct
    half = plan.prompt_bytes // 2
    head, tail = f"{kind % SHARED_HEADS:07d} ", f"{kind:07d} "
    return (head * (half // 8 + 1))[:half] + (tail * (half // 8 + 1))[: plan.prompt_bytes - half]


def request_bytes(number: int, plan: LoadPlan) -> bytes:
    """A request as it is sent."""
    body = msgspec.json.encode(
        {
            "model": plan.model,
            "user": str(number),
            "max_tokens": plan.chunks or 50,
            "stream": plan.chunks > 0,
            "messages": [{"role": "user", "content": prompt(number, plan)}],
        }
    )
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


def expected_answer(number: int, plan: LoadPlan) -> bytes:
    """The body of the answer to a request."""
    prompt_tokens = prompt_tokens_of(prompt(number, plan))
    if plan.chunks:
        return streamed_answer(number, plan.chunks, prompt_tokens)
    return whole_answer(number, 50, prompt_tokens)


@dataclass(slots=True)
class Load:
    """Sender of the requests of one plan."""

    plan: LoadPlan
    stopping: bool = False
    started: int = 0
    answering: int = 0
    completed: int = 0
    broken: int = 0
    body_bytes: int = 0
    held_back: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    reads_s: list[float] = field(default_factory=list)
    _idle: list["_Connection"] = field(default_factory=list)
    _connections: int = 0

    async def run(self) -> None:
        """Start the requests and wait for all answers."""
        plan = self.plan
        if plan.rate_per_s:
            await self._open_loop()
        else:
            for _ in range(plan.connections):
                self.idle(await self._connected())
        while not self._complete():  # noqa: ASYNC110 - plain state without a signal
            await asyncio.sleep(0.01)
        for connection in self._idle:
            connection.close()

    def idle(self, connection: "_Connection") -> None:
        """A connection may send: the next request in a closed loop, or the one that is due."""
        if self.plan.rate_per_s or not self._wanted():
            self._idle.append(connection)
        else:
            self._start(connection)

    def lost(self, connection: "_Connection") -> None:
        """A connection is gone. A closed loop goes on with those that are left."""
        self._connections -= 1
        if connection in self._idle:
            self._idle.remove(connection)

    def report(self) -> LoadReport:
        """Counts so far."""
        reads_s, self.reads_s = self.reads_s, []
        return LoadReport(
            time.monotonic(),
            self.answering,
            self.completed,
            self.broken,
            self.body_bytes,
            self.held_back,
            dict(self.problems),
            reads_s,
        )

    async def _open_loop(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while self._wanted():
            if self._idle:
                self._start(self._idle.pop())
            elif self._connections < self.plan.connections:
                self._start(await self._connected())
            else:
                self.held_back += 1
            due_s += 1 / self.plan.rate_per_s
            if (wait_s := due_s - loop.time()) > 0:
                await asyncio.sleep(wait_s)

    async def _connected(self) -> "_Connection":
        self._connections += 1
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self), "127.0.0.1", self.plan.port
        )
        return connection

    def _start(self, connection: "_Connection") -> None:
        number, self.started = self.started, self.started + 1
        connection.ask(number)

    def _wanted(self) -> bool:
        return not self.stopping and (self.plan.requests == 0 or self.started < self.plan.requests)

    def _complete(self) -> bool:
        return not self._wanted() and self.completed + self.broken == self.started


class _Connection(asyncio.Protocol):
    """One connection to the gateway, with at most one request on it."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._number: int | None = None
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def ask(self, number: int) -> None:
        self._number = number
        self._begun = False
        self._status = self._sum = self._bytes = 0
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request_bytes(number, self._load.plan))

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._ended(f"malformed answer: {error}")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(f"connection lost: {exc or 'closed'}")
        self._load.lost(self)

    def on_body(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._load.answering += 1
        self._sum = zlib.crc32(data, self._sum)
        self._bytes += len(data)
        self._load.body_bytes += len(data)
        if self._load.plan.connections == 1:
            self._load.reads_s.append(time.monotonic())

    def on_message_complete(self) -> None:
        number, status = self._number, self._parser.get_status_code()
        assert number is not None, "an answer without a request"
        expected = expected_answer(number, self._load.plan)
        problem = ""
        if status != 200:
            problem = f"status {status}"
        elif self._bytes != len(expected):
            problem = f"{self._bytes} bytes instead of {len(expected)}"
        elif self._sum != zlib.crc32(expected):
            problem = "other bytes than expected"
        reusable = self._parser.should_keep_alive()
        self._ended(problem)
        if reusable:
            self._load.idle(self)
        else:
            self._transport.close()

    def _ended(self, problem: str) -> None:
        """Count the request under way, if there is one; without a problem it was answered as expected."""
        if self._number is None:
            return
        self._number = None
        self._load.answering -= self._begun
        if problem:
            self._load.broken += 1
            self._load.problems[problem] += 1
        else:
            self._load.completed += 1


async def drive(plan: LoadPlan) -> None:
    """Run a load and report, until it is done or the input ends."""
    raise_open_files(0)
    load = Load(plan)
    running = asyncio.create_task(load.run(), name="load")
    stopping = asyncio.create_task(_stop(load, running), name="stop")
    while not running.done():
        await asyncio.wait((running,), timeout=REPORT_S)
        say(load.report())
    stopping.cancel()
    await running


async def _stop(load: Load, running: asyncio.Task[None]) -> None:
    """Start nothing new after the input has ended, and give up when the answers take too long."""
    await input_ended()
    load.stopping = True
    await asyncio.sleep(STOP_TIMEOUT_S)
    running.cancel()
