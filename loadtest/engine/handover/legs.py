"""Common parts of all hand-over protocols: the legs of requests, and the port that routes see.

A request that is handed over has a leg at two engines. Each is a job of its engine's scheduler:

    prefill   submitted (SGLang: once its decode leg has room) -> held with its KV -> released
    decode    submitted -> has room -> its KV is fetched -> delivered -> tokens

A `Leg` stands between the scheduler and the client, and passes on what concerns the client.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from typing import Protocol as Port

from loadtest.engine.handover.carriers import Carrier, Ended, Load, Shipment
from loadtest.engine.histogram import Histogram
from loadtest.engine.job import Job, Sink
from loadtest.engine.served import ServedJob

_BYTES = tuple(float(1 << exponent) for exponent in range(16, 36, 2))
"""64 KiB to 16 GiB."""


class TransferFailed(Exception):
    """A request's KV does not come; the text is for people."""


class NotFound(TransferFailed):
    """The engine that should have it cannot be found."""


class Outcome(Sink, Port):
    """Receiver of a request's end: also hears that its engine failed."""

    def failed(self, job: Job, status: int, message: str) -> None:
        """Nothing more comes of a job; the scheduler does not know it any more."""


class Worker(Port):
    """The part of a scheduler that hand-over needs; see `loadtest.engine.service.Scheduler`."""

    def submit(self, job: Job) -> None:
        """Queue a job."""

    def deliver(self, job: Job) -> None:
        """The KV of a decode job is there."""

    def release(self, job: Job) -> None:
        """Release the blocks of a prefill job."""

    def abort(self, job: Job) -> None:
        """Drop a job wherever it is; idempotent."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """KV that goes from this engine to another.

    Attributes:
        kv_bytes: Bytes of a sequence by its tokens.
        prefill_s: Seconds of prefilling uncached tokens behind cached ones.
        layers: Layers that a transfer is pipelined over.
    """

    way: Carrier
    kv_bytes: Callable[[int], int]
    prefill_s: Callable[[int, int], float]
    layers: int

    def along(self, tokens: int, cached_tokens: int, ended: Ended) -> Shipment:
        """Send the KV of a prompt layer by layer as it is computed, from the beginning of its prefill on."""
        prefill_s = self.prefill_s(tokens - cached_tokens, cached_tokens)
        n_bytes, ready_bytes = self.kv_bytes(tokens), self.kv_bytes(cached_tokens)
        return self.way.send(Load(n_bytes, min(ready_bytes, n_bytes - 1), prefill_s, self.layers), ended)

    def pull(self, tokens: int, kept_tokens: int, ended: Ended) -> Shipment:
        """Send the KV of a prompt that is all there, but for what the reader has."""
        n_bytes = max(0, self.kv_bytes(tokens) - self.kv_bytes(kept_tokens))
        return self.way.send(Load(n_bytes, n_bytes, 0.0, self.layers), ended)


@dataclass(slots=True)
class Counters:
    """Counts of hand-overs, for ``/metrics``.

    Attributes:
        received_tokens: Prompt tokens whose KV came from another engine.
        transfer_bytes: Bytes of each transfer.
        transfer_s: From the request for KV to its arrival.
        unmet: Legs whose other leg, or its engine, was not found.
        expired: Requests whose KV was not fetched in time.
    """

    received_tokens: int = 0
    transfer_bytes: Histogram = field(default_factory=lambda: Histogram(_BYTES))
    transfer_s: Histogram = field(default_factory=Histogram)
    unmet: int = 0
    failed: int = 0
    expired: int = 0

    def received(self, tokens: int, n_bytes: int, seconds: float) -> None:
        """Count a transfer."""
        self.received_tokens += tokens
        self.transfer_bytes.observe(n_bytes)
        self.transfer_s.observe(seconds)


class Handover(Port):
    """A part in a hand-over protocol, seen from the routes."""

    counters: Counters

    @property
    def port(self) -> int:
        """Port for decode engines."""

    def plan(self, body: Mapping[str, Any], ids: Sequence[str]) -> Sequence[Any]:
        """Return a plan for each job of a request, None for one that is served here alone.

        Raises:
            RequestRefused: The request lacks required fields.
        """

    def take(self, plan: Any, job: ServedJob, outcome: Outcome) -> None:
        """Take up a leg; it hears everything in the scheduler's stead."""

    def abort(self, job: Job) -> bool:
        """Drop a leg wherever it is; False if the job is none."""

    def abort_id(self, id_prefix: str) -> None:
        """Drop the legs whose id begins so that the scheduler does not know yet."""

    async def open(self, host: str) -> None:
        """Listen for decode engines; `OSError` if the port is taken."""

    def close(self) -> None:
        """Stop at once, as if the process ended."""

    def state(self) -> Mapping[str, int]:
        """Open work with other engines, for tests: all 0 if none."""


class Leg:
    """One job of a request that is handed over.

    Args:
        job: The job; its sink is the leg from now on.
        outcome: Gets the result.
        ended: Called with the reason when the scheduler is done with the job, in place of ``outcome``.
    """

    def __init__(self, job: Job, outcome: Outcome, ended: "Callable[[Leg, str], None]") -> None:
        self.job = job
        self.outcome = outcome
        self.submitted = False
        self.task: asyncio.Task[None] | None = None
        self._ended = ended
        job.sink = self

    def emitted(self, job: Job) -> None:
        """See `Sink`."""
        self.outcome.emitted(job)

    def finished(self, job: Job, reason: str) -> None:
        """See `Sink`."""
        self._ended(self, reason)


class DecodeLegs:
    """Decode legs of one engine, each with a task that fetches its KV."""

    def __init__(self, worker: Worker, counters: Counters) -> None:
        self._worker = worker
        self._counters = counters
        self._legs: dict[Job, Leg] = {}

    @property
    def receiving(self) -> int:
        """Legs whose KV is not there yet."""
        return sum(leg.task is not None for leg in self._legs.values())

    def take(self, job: Job, outcome: Outcome, fetch: Callable[[Leg], Awaitable[None]]) -> None:
        """Begin a leg; ``fetch`` submits its job with `room` and gets its KV, or raises `TransferFailed`."""
        job.role = "decode"
        leg = self._legs[job] = Leg(job, outcome, self._ended)
        leg.task = asyncio.get_running_loop().create_task(self._run(leg, fetch), name="handover.decode")

    async def room(self, leg: Leg) -> None:
        """Submit a leg's job, and wait until there is room for its KV."""
        room = asyncio.get_running_loop().create_future()
        leg.job.admitted = lambda _: None if room.done() else room.set_result(None)
        leg.submitted = True
        self._worker.submit(leg.job)
        await room

    def abort(self, job: Job) -> bool:
        """Drop a leg wherever it is; False if the job is none of them."""
        leg = self._legs.get(job)
        if leg is None:
            return False
        if leg.submitted:
            self._worker.abort(job)
        else:
            self._ended(leg, "abort")
        return True

    def abort_id(self, id_prefix: str) -> None:
        """Drop the legs whose id begins so that the scheduler does not know yet."""
        for job in [job for job, leg in self._legs.items() if not leg.submitted]:
            if job.id.startswith(id_prefix):
                self.abort(job)

    def close(self) -> None:
        """Give up all legs without a notice."""
        for leg in self._legs.values():
            if leg.task is not None:
                leg.task.cancel()
        self._legs.clear()

    async def _run(self, leg: Leg, fetch: Callable[[Leg], Awaitable[None]]) -> None:
        try:
            await fetch(leg)
        except TransferFailed as failure:
            if isinstance(failure, NotFound):
                self._counters.unmet += 1
            else:
                self._counters.failed += 1
            leg.task = None
            del self._legs[leg.job]
            if leg.submitted:
                self._worker.abort(leg.job)
            leg.outcome.failed(leg.job, 500, str(failure))
        else:
            leg.task = None
            self._worker.deliver(leg.job)

    def _ended(self, leg: Leg, reason: str) -> None:
        if leg.task is not None:
            leg.task.cancel()
        # A leg that failed is gone already, and its client has been told.
        if self._legs.pop(leg.job, None) is not None:
            leg.outcome.finished(leg.job, reason)
