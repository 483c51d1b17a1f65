"""One request on its way through the simulated fleet.

    plain     begin ── its turn ──> prefill ── first token ──> decode ──> ended
    split     begin ── its turn ─┬> prefill ──────────┬── transfer ── first token ──> decode ──> ended
                                 └> room for its KV ──┘
    sites     begin ── its turn ─┬> prefill ═══ transfer as it is made ═══ first token ──> decode ──> ended
                                 └> room for its KV ──┘
    either    no worker may take it, or it can never fit, or it waited for too long: rejected, expired

A split request is sent to both of its workers at once, as SGLang's routers do; the transfer begins when the
prompt is computed and the decode worker has room. Between sites it begins as soon as the prefill does and the
room is there, and ends no sooner than the prefill.
"""

from math import isnan, nan
from typing import Protocol

from loadtest.engine.job import Job, Role
from loadtest.simulator.fleet import Fleet
from loadtest.simulator.queueing import DEFAULT_FLOW
from loadtest.simulator.records import Outcome
from loadtest.simulator.replica import Dispatch, Replica
from loadtest.simulator.site_links import SiteLink, Transfer
from loadtest.simulator.workload import SimRequest
from policies import Usage, rank_of


class Watcher(Protocol):
    """Receiver of a request's events."""

    def placed(self, flight: "Flight") -> None:
        """It is about to be sent to its worker."""

    def began(self, flight: "Flight") -> None:
        """Its answer began."""

    def ended(self, flight: "Flight") -> None:
        """It left the fleet, however; said exactly once."""


class Flight:
    """One request, from its arrival to its end; times are NaN before they are known.

    Attributes:
        first_s: Begin of its answer.
        dispatch: Its placement; None without one.
        worker: -1 before it is sent.
        decode_worker: -1 if its worker decodes it.
        job: Its prefill, in the engine.
        computed_tokens: Of its prompt, computed anywhere when it was placed.
        best_tokens: Reusable by the best worker then.
        held_tokens: The most that any worker held then, reusable or not.
    """

    __slots__ = (
        "_computed",
        "_decode_job",
        "_fleet",
        "_flow",
        "_handed_s",
        "_has_room",
        "_link",
        "_session",
        "_shipped",
        "_told",
        "_transfer",
        "_watcher",
        "arrival_s",
        "best_tokens",
        "computed_tokens",
        "decode_worker",
        "dispatch",
        "dispatched_s",
        "finished_s",
        "first_s",
        "held_tokens",
        "job",
        "outcome",
        "replica",
        "request",
        "worker",
    )

    def __init__(
        self,
        request: SimRequest,
        fleet: Fleet,
        replica: Replica,
        watcher: Watcher,
        flow: str = DEFAULT_FLOW,
        session: bytes = b"",
    ) -> None:
        self.request = request
        self._session = session
        self._flow = flow
        self._fleet = fleet
        self.replica = replica
        self._watcher = watcher
        self._computed = self._has_room = self._shipped = self._told = False
        self._decode_job: Job | None = None
        self._link: SiteLink | None = None
        self._transfer: Transfer | None = None
        self.arrival_s = fleet.clock.time()
        self.dispatched_s = self._handed_s = nan
        self.first_s = nan
        self.finished_s = nan
        self.outcome: Outcome | None = None
        self.dispatch: Dispatch | None = None
        self.worker = -1
        self.decode_worker = -1
        self.job: Job | None = None
        self.computed_tokens = self.best_tokens = self.held_tokens = 0

    def begin(self) -> None:
        """Come to the gateway."""
        self.replica.take(self.request.blocks, self.request.tokens, self, self._flow)

    def refused(self, outcome: Outcome) -> None:
        """See `loadtest.simulator.replica.Caller`."""
        self._end(outcome)

    def dispatched(self, dispatch: Dispatch) -> None:
        """See `loadtest.simulator.replica.Caller`: it is sent to its worker."""
        fleet = self._fleet
        self.dispatched_s = fleet.clock.time()
        self.dispatch = dispatch
        worker_id, rank = rank_of(dispatch.attempt.worker_id)
        self.worker = fleet.places[worker_id]
        self._watcher.placed(self)
        if dispatch.decode_attempt is not None:
            decode_id, decode_rank = rank_of(dispatch.decode_attempt.worker_id)
            self.decode_worker = fleet.decode_places[decode_id]
            self._link = fleet.link_between(self.worker, self.decode_worker)
            self._decode_job = self._job("decode", decode_rank)
            fleet.decode_workers[self.decode_worker].submit(self._decode_job)
            if self.outcome is not None:
                return  # it can never fit there, which is said at once
        self.job = self._job("plain" if self._decode_job is None else "prefill", rank)
        fleet.workers[self.worker].submit(self.job)

    def emitted(self, job: Job) -> None:
        """See `loadtest.engine.job.Sink`: the first token, of a plain job or of the decode leg."""
        self._start()
        if job is self.job:
            assert self.dispatch is not None
            self.replica.first_token(self.dispatch)

    def finished(self, job: Job, reason: str) -> None:
        """See `loadtest.engine.job.Sink`."""
        if self.outcome is not None:
            return  # the other leg has ended everything
        if reason in ("abort", "refused"):
            self._fail(Outcome.FAILED if reason == "abort" else Outcome.REJECTED)
        elif job.role == "prefill":
            self._computed = True
            self._send()
            self._handed_over()
        else:
            self._complete()

    def _job(self, role: Role, rank: int) -> Job:
        request = self.request
        ends = role != "prefill"
        return Job(
            request.blocks,
            request.tokens,
            request.output_tokens if ends else 1,
            request.held if ends else request.blocks,
            request.tokens + request.output_tokens - 1 if ends else request.tokens,
            self,
            role,
            session=self._session,
            admitted={"plain": None, "prefill": self._making, "decode": self._room}[role],
            rank=rank,
        )

    @property
    def _started(self) -> bool:
        return not isnan(self.first_s)

    def _start(self) -> None:
        self.first_s = self._fleet.clock.time()
        self._watcher.began(self)

    def _making(self, _job: Job) -> None:
        if self._link is not None:
            self._send()

    def _room(self, _job: Job) -> None:
        self._has_room = True
        self._send()

    def _send(self) -> None:
        """Send what of the KV has not gone yet, if there is any and there is room for it."""
        job, fleet = self.job, self._fleet
        if job is None or not self._has_room:
            return
        shape = fleet.profile.shape
        n_bytes = shape.kv_bytes(job.prompt_tokens)
        if self._link is None:
            if self._computed:
                compute_s = job.first_s - job.started_s
                fleet.link.send(fleet.link.exposed_bytes(n_bytes, compute_s, shape.layers), self._arrived)
        elif self._transfer is None and job.was_admitted:
            prefill = fleet.workers[self.worker].profile.prefill
            compute_s = prefill.prompt_s(job.prompt_tokens - job.cached_tokens, job.cached_tokens)
            self._transfer = self._link.begin(
                n_bytes, job.started_s, job.started_s + compute_s, self._arrived
            )

    def _arrived(self) -> None:
        self._shipped = True
        self._handed_over()

    def _handed_over(self) -> None:
        """If all is computed and there: the prefill worker is free, and the decode worker goes on."""
        if not (self._computed and self._shipped):
            return
        assert self.dispatch is not None
        assert self.job is not None
        assert self._decode_job is not None
        self._fleet.workers[self.worker].release(self.job)
        if self.outcome is None:
            self.replica.first_token(self.dispatch)
            self._told = True
            self._handed_s = self._fleet.clock.time()
            self._fleet.decode_workers[self.decode_worker].deliver(self._decode_job)

    def _complete(self) -> None:
        assert self.dispatch is not None
        assert self.job is not None
        told = self._started or self._decode_job is not None
        if not self._started:
            self._start()
        usage = Usage(self.request.tokens, self.job.cached_tokens, self.request.output_tokens)
        now_s = self._fleet.clock.time()
        prefilled_s = self.first_s if self._decode_job is None else self._handed_s
        self.replica.completed(
            self.dispatch, usage, prefilled_s - self.dispatched_s, now_s - self.first_s, told=told
        )
        self._end(Outcome.COMPLETED)

    def _fail(self, outcome: Outcome) -> None:
        assert self.dispatch is not None
        self._end(outcome)
        if self._link is not None and self._transfer is not None:
            self._link.give_up(self._transfer)
        for legs, worker, job in (
            (self._fleet.workers, self.worker, self.job),
            (self._fleet.decode_workers, self.decode_worker, self._decode_job),
        ):
            if job is not None:
                legs[worker].abort(job)
        self.replica.aborted(self.dispatch, told=self._told or self._started)

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.finished_s = self._fleet.clock.time()
        self._watcher.ended(self)
