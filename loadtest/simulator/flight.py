"""One request on its way through the simulated fleet.

arrive ── dispatch ──> prefill ── first token ──> decode ──> ended         plain workers
            │             └─ transfer ── first token ──> decode worker ┘   split fleet
            └─ nobody may take it: rejected
"""

from math import isnan, nan
from typing import Protocol

from loadtest.simulator.fleet import Fleet
from loadtest.simulator.interim import Job
from loadtest.simulator.records import Outcome
from loadtest.simulator.replica import Dispatch, Replica
from loadtest.simulator.workload import SimRequest
from policies import Shed
from router.gateway.usage import Usage


class Watcher(Protocol):
    """Who is told how a request goes."""

    def began(self, flight: "Flight") -> None:
        """Its answer began."""

    def ended(self, flight: "Flight") -> None:
        """It left the fleet, however; said exactly once."""


class Flight:
    """One request, from its arrival to its end.

    Attributes:
        request: What is asked.
        replica: Who got it.
        arrival_s: When it came.
        first_s: When its answer began; NaN before.
        finished_s: When it ended; NaN before.
        outcome: How; None before.
        dispatch: How it was placed; None if it was not.
        worker: Where it was sent; -1 before.
        decode_worker: Where it is decoded, if elsewhere; else -1.
        job: Its prefill, in the engine.
    """

    __slots__ = (
        "_fleet",
        "_watcher",
        "arrival_s",
        "decode_worker",
        "dispatch",
        "finished_s",
        "first_s",
        "job",
        "outcome",
        "replica",
        "request",
        "worker",
    )

    def __init__(self, request: SimRequest, fleet: Fleet, replica: Replica, watcher: Watcher) -> None:
        self.request = request
        self._fleet = fleet
        self.replica = replica
        self._watcher = watcher
        self.arrival_s = fleet.clock.time()
        self.first_s = nan
        self.finished_s = nan
        self.outcome: Outcome | None = None
        self.dispatch: Dispatch | None = None
        self.worker = -1
        self.decode_worker = -1
        self.job: Job | None = None

    def begin(self) -> None:
        """Place and send."""
        request, fleet = self.request, self._fleet
        dispatch = self.replica.dispatch(request.blocks, request.tokens)
        if isinstance(dispatch, Shed):
            self._end(Outcome.REJECTED)
            return
        self.dispatch = dispatch
        self.worker = dispatch.attempt.chosen.slot
        split = dispatch.decode_attempt is not None
        if dispatch.decode_attempt is not None:
            self.decode_worker = dispatch.decode_attempt.chosen.slot - len(fleet.workers)
        self.job = Job(
            request.blocks,
            request.tokens,
            1 if split else request.output_tokens,
            request.blocks if split else request.held,
            request.tokens if split else request.tokens + request.output_tokens - 1,
            self,
            "prefill" if split else "plain",
        )
        fleet.workers[self.worker].submit(self.job)

    def emitted(self, job: Job) -> None:
        """See `loadtest.engine.service.Sink`: the first token, of a plain job or of the decode leg."""
        if self._started:
            return
        self._start()
        if job is self.job:
            assert self.dispatch is not None
            self.replica.first_token(self.dispatch)

    def finished(self, job: Job, reason: str) -> None:
        """See `loadtest.engine.service.Sink`."""
        if reason == "abort":
            self._fail()
        elif job is self.job and self.decode_worker >= 0:
            self._transfer(job)
        else:
            self._complete()

    @property
    def _started(self) -> bool:
        return not isnan(self.first_s)

    def _start(self) -> None:
        self.first_s = self._fleet.clock.time()
        self._watcher.began(self)

    def _transfer(self, job: Job) -> None:
        """The prefill is done: what of its KV blocks has not crossed the link yet follows."""
        link, shape = self._fleet.link, self._fleet.profile.shape
        n_bytes = shape.kv_bytes(job.prompt_tokens)
        compute_s = self._fleet.clock.time() - job.started_s
        link.send(link.exposed_bytes(n_bytes, compute_s, shape.layers), self._decode)

    def _decode(self) -> None:
        """The KV blocks are there: the prefill worker is free, and the decode worker goes on."""
        assert self.dispatch is not None
        self.replica.first_token(self.dispatch)
        request = self.request
        job = Job(
            request.blocks,
            request.tokens,
            request.output_tokens,
            request.held,
            request.tokens + request.output_tokens - 1,
            self,
            "decode",
        )
        self._fleet.decode_workers[self.decode_worker].submit(job)

    def _complete(self) -> None:
        assert self.dispatch is not None
        assert self.job is not None
        told = self._started
        if not told:
            self._start()
        cached_tokens = self.job.device_tokens + self.job.host_tokens
        usage = Usage(self.request.tokens, cached_tokens, self.request.output_tokens)
        self.replica.completed(
            self.dispatch, usage, self.first_s - self.arrival_s, told=told or self.decode_worker >= 0
        )
        self._end(Outcome.COMPLETED)

    def _fail(self) -> None:
        assert self.dispatch is not None
        self.replica.aborted(self.dispatch, told=self._started)
        self._end(Outcome.FAILED)

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.finished_s = self._fleet.clock.time()
        self._watcher.ended(self)
