"""The reservation of one attempt on its worker, from placement to release.

    Placed ──FirstToken──> prefilled ──Finished──> released
       └───────────────Finished───────────────────────^

Every replica counts it from these operations. Each is published once, in this order, and `release` runs on
every path: an attempt never released would leave a worker no room. The worker's circuit, the number of
requests at workers and the predicted end of the prefill are counted in and out at the same two places.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from policies import Attempt, Finished, FirstToken, Placed, Usage
from router.errors import UpstreamError
from router.fleet import LocalWorker
from router.gateway.blame import Failure
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.metric_families import UPSTREAM_ERRORS


class Reserved(Protocol):
    """A reservation as its attempt knows it: `Reservation`, or one of an option."""

    @property
    def attempt(self) -> Attempt:
        """The attempt in the log; of a pair, the prefill worker's."""

    @property
    def local(self) -> LocalWorker:
        """The worker whose answer or failure is heard now."""

    @property
    def avoided(self) -> list[int]:
        """Slots of the workers that another attempt should avoid."""

    @property
    def prefilled(self) -> bool:
        """True once the prefill is over."""

    def prefill_ended(self) -> None:
        """End the prefill: the answer began."""

    def renew(self, left_us: int, now_us: int) -> None:
        """Publish the reservation again if it was dropped."""

    def worker_failed(self, error: UpstreamError) -> list[Failure]:
        """Note a failure; return the failures that may count."""

    def release(self, *, abandoned: bool, prefilled_us: int = 0) -> None:
        """Release, once."""


class SharedReservation(Reserved, Protocol):
    """The reservation of a request that two workers share, an option's (`router.pairs`)."""

    @property
    def decode_attempt(self) -> Attempt:
        """The attempt at the worker that answers."""

    @property
    def usage(self) -> bytes:
        """The end of the prefill worker's answer, with its counts; empty before."""

    @property
    def offload(self) -> object:
        """The choice of the prefill's site, for operators; None if there was no choice."""

    def avoided_at_least(self, error: UpstreamError) -> list[int]:
        """Return fewer slots than `avoided` for the case that no other worker is left; empty: no fewer."""

    def refused(self, status: int) -> None:
        """Note an error answer of one worker."""

    def log_fields(self) -> Mapping[str, object]:
        """Fields of the request's log line."""

    def understood(self, prefill: Usage | None, decode: Usage | None) -> Usage | None:
        """Combine the counts of both workers."""

    def learn(self, usage: Usage, first_byte_s: float, now_us: int) -> bool:
        """Learn from a completed answer; True if the prefill worker has lost its cache."""


class Reservation(msgspec.Struct, eq=False):
    """An attempt in the log, ``released`` before `make` and after `release`.

    ``prefilled`` once the end of its prefill is published.
    """

    gateway: Gateway
    parsed: ParsedRequest
    local: LocalWorker
    attempt: Attempt
    placed: Placed
    prefilled: bool = False
    released: bool = True

    @property
    def avoided(self) -> list[int]:
        """Slots of the workers that another attempt should avoid."""
        return self.local.slots

    def make(self, decided_s: float) -> None:
        """Reserve what was decided at ``decided_s`` of the gateway's clock.

        Raises `OpRefused` if it cannot be published. Once it is, `release` must follow.
        """
        gateway, attempt = self.gateway, self.attempt
        sending, chosen = gateway.sending, attempt.chosen
        started_s = attempt.started_s
        gateway.log.publish(self.placed)
        self.released = False
        sending.at_workers += 1
        if sending.at_workers >= sending.at_workers_max:
            sending.limit()
        if gateway.fleet.circuits.tripped:
            gateway.registry.circuits.dispatched(self.local, attempt.placed_us)
        policy = gateway.placing.decider.policy.name
        gateway.metrics.decided((policy, chosen.reason, decided_s - started_s))
        if not self.parsed.stream:
            # The first byte of such an answer comes after the decode: the prefill is over when predicted.
            due_s = started_s + chosen.estimated_ttft_s
            sending.prefill_ends.expect(attempt.request_id, self, due_s)

    def prefill_ended(self) -> None:
        """Publish the end of the prefill: the answer began, or was predicted to."""
        if not self.prefilled and not self.released:
            self.prefilled = True
            gateway = self.gateway
            gateway.log.publish(FirstToken(self.attempt.request_id, gateway.log.now_us()))
            if gateway.fleet.relieved:
                gateway.placing.room.changed()

    def renew(self, left_us: int, now_us: int) -> None:
        """Publish the reservation again if it was dropped; see `RequestExchange.renew`."""
        if self.released or self.placed.at_us > left_us:
            return
        self.placed = msgspec.structs.replace(self.placed, at_us=now_us, paths=())
        self.gateway.log.publish(self.placed)
        if self.prefilled:
            self.gateway.log.publish(FirstToken(self.placed.request_id, now_us))

    def worker_failed(self, error: UpstreamError) -> list[Failure]:
        """Note that the worker failed this attempt; return the failures that may count against it."""
        gateway, local = self.gateway, self.local
        gateway.registry.noticed(local, error, gateway.log.now_us())
        gateway.metrics.counts[UPSTREAM_ERRORS].add((local.worker.worker_id, error.code))
        return [Failure(local, self.attempt.placed_us, error.code, error.asked)]

    def release(self, *, abandoned: bool, prefilled_us: int = 0) -> None:
        """Release, once.

        The worker may have computed nothing if ``abandoned``. ``prefilled_us`` is the log time, now, of a
        first token that may not be published yet: the answer came in one piece.
        """
        if self.released:
            return
        self.released = True
        gateway, attempt = self.gateway, self.attempt
        sending = gateway.sending
        sending.at_workers -= 1
        if sending.full:
            sending.limit()
        if not self.parsed.stream:
            sending.prefill_ends.waiting.pop(attempt.request_id, None)
        now_us = prefilled_us or gateway.log.now_us()
        gateway.log.publish(Finished(attempt.request_id, now_us, 0 if self.prefilled else prefilled_us))
        if gateway.fleet.relieved:
            gateway.placing.room.changed()
        if gateway.fleet.circuits.tripped:
            gateway.registry.circuits.released(self.local, now_us, attempt.placed_us)
        if abandoned:
            gateway.placing.feedback.abandoned(self.parsed, attempt)
