"""Synthetic replicas around one real reader of the shared log.

Both functions run in child processes of `loadtest.bench.log_requests`, the first in those of
`loadtest.bench.sharing` as well:

    speak     publishes the requests of all replicas, each through a real `Publisher` and connection
    listen    reads the log as many times as there are other replicas, and discards what it reads

A request is ``Placed``, has its first token after `PREFILL_S` and ends after `ANSWER_S`, at one replica,
whose load vectors tell the rest. Conversations repeat their prompt and add `TURN_BLOCKS`; they restart
when they have grown by `GROWTH_BLOCKS`. All share the first `SHARED_BLOCKS` with a sixteenth of the others.
Prompts of at most `SHARED_BLOCKS` blocks are repeated as they are.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Coroutine, Sequence

import hiredis
import msgspec

from loadtest.bench.child import input_ended, say
from policies import (
    Finished,
    FirstToken,
    LoadVector,
    LoadVectors,
    Op,
    Placed,
    WorkerPut,
    encode_op,
)
from policies.state.loads import Loads
from radix import BLOCK_TOKENS, HASH_BYTES
from router.shared import Keys, LogClock, NoListener
from router.shared.degraded_reasons import DegradedReasons
from router.shared.heartbeat import Heartbeat
from router.shared.peer_presence import PeerPresence
from router.shared.placed_forms import PlacedForms
from router.shared.publisher import Publisher, PublisherRules
from router.shared.reader import READ_ENTRIES_MAX, READ_INTERVAL_S
from router.shared.server import RedisLink

WORKERS = 200
WORKER_BLOCKS = 8000
CONVERSATIONS = 1000
PRODUCTS = 16
SHARED_BLOCKS = 16
TURN_BLOCKS = 3
GROWTH_BLOCKS = 30
PREFILL_S = 0.2
ANSWER_S = 1.0
STEP_S = 0.001
REPORT_S = 1.0
FLUSH_S = 0.003
"""As `SharingRules.flush_interval_ms` has it."""
TTL_S = 3.0
"""As `SharingRules.heartbeat_ttl_s` has it."""
BUFFER_OPS_MAX = 100_000
BUFFER_BYTES_MAX = 64 << 20
READ_BYTES = 1 << 20
BLOCK_MS = 200


class CrowdPlan(msgspec.Struct, frozen=True):
    """Replicas of one case.

    Attributes:
        blocks: Length at which prompts begin.
        workers: Ids of workers that the namespace knows; else synthetic ones are put.
        beats: The replicas have heartbeats, as real ones do.
    """

    url: str
    namespace: str
    replicas: int
    requests_per_s: float
    blocks: int
    prefill_s: float = PREFILL_S
    answer_s: float = ANSWER_S
    workers: tuple[str, ...] = ()
    beats: bool = False


class Spoken(msgspec.Struct, frozen=True):
    """Totals of a speaker: requests published, entries and bytes of the log that carried their operations."""

    at_s: float
    requests: int
    entries: int
    size_bytes: int


class Conversations:
    """Prompts of requests, by their number: each grows by a few blocks from turn to turn."""

    def __init__(
        self, blocks: int, seed: int = 1, workers: Sequence[str] = (), prefill_s: float = PREFILL_S
    ) -> None:
        self._service_us = round(prefill_s * 1e6)
        self._chance = random.Random(seed)
        self._blocks = blocks
        self._repeats = blocks <= SHARED_BLOCKS
        shared = min(SHARED_BLOCKS, blocks)
        self._products = [self._chance.randbytes(HASH_BYTES * shared) for _ in range(PRODUCTS)]
        self.workers = list(workers) or [
            f"10.0.{number // 250}.{number % 250}:8000" for number in range(WORKERS)
        ]
        self._open: list[tuple[bytes, str]] = [self._begun() for _ in range(CONVERSATIONS)]

    def placed(self, number: int, replica: str, now_us: int) -> Placed:
        """Return the placement of the next request."""
        at = number % CONVERSATIONS
        path, worker = self._open[at]
        known = len(path) // HASH_BYTES
        if self._repeats:
            pass
        elif known >= self._blocks + GROWTH_BLOCKS:
            path, worker = self._begun()
            known = SHARED_BLOCKS
        else:
            path += self._chance.randbytes(HASH_BYTES * TURN_BLOCKS)
        self._open[at] = path, worker
        blocks = len(path) // HASH_BYTES
        return Placed(
            f"{replica}-{number:x}",
            now_us,
            worker,
            replica,
            self._service_us,
            (blocks - known) * BLOCK_TOKENS,
            blocks * BLOCK_TOKENS,
            (path,),
            ends=False,
            safe_blocks=known,
        )

    def _begun(self) -> tuple[bytes, str]:
        if self._repeats:
            return self._chance.randbytes(HASH_BYTES * self._blocks), self._chance.choice(self.workers)
        own = self._chance.randbytes(HASH_BYTES * (self._blocks - SHARED_BLOCKS))
        return self._chance.choice(self._products) + own, self._chance.choice(self.workers)


class _Written(NoListener):
    def __init__(self) -> None:
        self.entries = self.size_bytes = 0

    def flushed(self, ops: int, size_bytes: int, took_s: float) -> None:
        del ops, took_s
        self.entries += 1
        self.size_bytes += size_bytes


class _OwnLoads:
    """Requests of one replica in flight (`policies.state.load_vectors.LoadPort`)."""

    urgent = False

    def __init__(self, replica: str, workers: list[str]) -> None:
        self.loads = Loads(own=replica)
        self._workers = workers
        self.slots = {worker: slot for slot, worker in enumerate(workers)}
        self.loads.ensure(len(workers) - 1)

    @property
    def due(self) -> bool:
        return bool(self.loads.changed) or self.loads.placed_any

    def tells(self, op: Op) -> bool:
        return isinstance(op, Placed)

    def vector(self, now_us: int, *, full: bool) -> LoadVector:
        return self.loads.own_vector(now_us, self._workers.__getitem__, full=full)


class _Speaker:
    def __init__(self, plan: CrowdPlan) -> None:
        self._plan = plan
        self._written = _Written()
        self._clock = LogClock()
        self._names = [f"gateway-7f9c4d-x{number:02d}" for number in range(plan.replicas)]
        self._conversations = Conversations(plan.blocks, workers=plan.workers, prefill_s=plan.prefill_s)
        self._loads = [_OwnLoads(name, self._conversations.workers) for name in self._names]
        self._publishers = [
            self._publisher(name, loads) for name, loads in zip(self._names, self._loads, strict=True)
        ]
        self._requests = 0

    async def run(self) -> None:
        """Publish and report until the input ends."""
        links = [RedisLink(self._plan.url, 5.0) for _ in self._names]
        loops = [publisher.run(link) for publisher, link in zip(self._publishers, links, strict=True)]
        if self._plan.beats:
            loops += [self._beat(name, link) for name, link in zip(self._names, links, strict=True)]
        await _until_input_ends(*loops, self._drive(), self._report())

    async def _beat(self, name: str, link: RedisLink) -> None:
        keys = Keys(self._plan.namespace)
        heartbeat = Heartbeat(name, keys, self._clock, lambda _: None, ttl_s=TTL_S, value=lambda: b"{}")
        while True:
            await heartbeat.beat(link)
            await asyncio.sleep(heartbeat.interval_s)

    def _publisher(self, name: str, loads: _OwnLoads) -> Publisher:
        reasons, presence = DegradedReasons(NoListener()), PeerPresence(lambda: self._plan.replicas - 1)
        return Publisher(
            f"{name}/abcdef12".encode(),
            Keys(self._plan.namespace),
            self._written,
            reasons,
            presence,
            PlacedForms(name),
            LoadVectors(loads, self._clock.now_us, lambda: presence.alone, time.monotonic),
            PublisherRules(FLUSH_S, BUFFER_OPS_MAX, BUFFER_BYTES_MAX),
        )

    async def _drive(self) -> None:
        for name in () if self._plan.workers else self._conversations.workers:
            put = WorkerPut(name, 1, "static", f"http://{name}", capacity_tokens=WORKER_BLOCKS * BLOCK_TOKENS)
            self._publishers[0].put(encode_op(put))
        await asyncio.sleep(1.0)
        prefilling: deque[tuple[float, int, str]] = deque()
        answering: deque[tuple[float, int, str]] = deque()
        began_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            while self._requests < (now_s - began_s) * self._plan.requests_per_s:
                at = self._requests % len(self._names)
                now_us = self._clock.now_us()
                placed = self._conversations.placed(self._requests, self._names[at], now_us)
                loads = self._loads[at]
                loads.loads.placed(placed, loads.slots[placed.worker])
                self._publishers[at].put(encode_op(placed))
                prefilling.append((now_s + self._plan.prefill_s, at, placed.request_id))
                self._requests += 1
            while prefilling and prefilling[0][0] <= now_s:
                due_s, at, request_id = prefilling.popleft()
                self._loads[at].loads.first_token(FirstToken(request_id, self._clock.now_us()))
                answering.append((due_s + self._plan.answer_s - self._plan.prefill_s, at, request_id))
            while answering and answering[0][0] <= now_s:
                _, at, request_id = answering.popleft()
                self._loads[at].loads.finished(Finished(request_id, self._clock.now_us()))
            for publisher in self._publishers:
                publisher.loads_changed()
            await asyncio.sleep(STEP_S)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            written = self._written
            say(Spoken(time.monotonic(), self._requests, written.entries, written.size_bytes))


async def speak(plan: CrowdPlan) -> None:
    """Publish what all replicas of a plan do."""
    await _Speaker(plan).run()


async def listen(plan: CrowdPlan) -> None:
    """Read the log once for each replica of a plan but one."""
    await _until_input_ends(*(_discard(plan) for _ in range(plan.replicas - 1)))


async def _discard(plan: CrowdPlan) -> None:
    reader, writer = await asyncio.open_unix_connection(plan.url.removeprefix("unix://"), limit=READ_BYTES)
    position, log = b"0-0", Keys(plan.namespace).log
    presence = PeerPresence(lambda: plan.replicas - 1)
    answers = hiredis.Reader()
    while True:
        command = ("XREAD", "COUNT", READ_ENTRIES_MAX, "BLOCK", BLOCK_MS, "STREAMS", log, position)
        writer.write(hiredis.pack_command(command))  # type: ignore[arg-type]  # they know tuples of one
        while (answer := answers.gets()) is False:
            answers.feed(await reader.read(READ_BYTES))
        if answer:
            entries = answer[0][1]
            position = entries[-1][0]
            if len(entries) < READ_ENTRIES_MAX:
                await asyncio.sleep(presence.pause_s(READ_INTERVAL_S))


async def _until_input_ends(*loops: Coroutine[None, None, None]) -> None:
    tasks = [asyncio.ensure_future(loop) for loop in (input_ended(), *loops)]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()
