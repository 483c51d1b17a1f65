"""What one attempt has reserved on its two workers and the link between them, until its release.

    prefill   Placed ──prefill leg over──────────────> Finished
    decode    Placed ──KV arrived──> FirstToken ─────> Finished
    link      Shipping ──KV arrived──> Shipped      (or the decode worker's Finished)

Both are ordinary attempts in the log, with ids of their own. The decode worker's room is reserved from the
start, before anything is sent: its engine makes room for the KV before the prefill begins. Whatever comes
first, `release` ends what has not ended yet, and each of the three once.

A leg that fails is its own worker's fault: its circuit, its metrics, and the worker that the next attempt
avoids. The partner is innocent; it is let go of without an outcome. KV that does not come after a good
prefill leg (`TransferFailed`) counts for both circuits: either may be at fault, and only whoever is fails
with others, too. So a prefill has done well only when its KV has arrived.
"""

from collections.abc import Callable
from enum import StrEnum
from math import inf

import msgspec

from policies import (
    HAND_OVERS,
    Attempt,
    Finished,
    FirstToken,
    OffloadVerdict,
    Patience,
    Placed,
    Shipped,
    Shipping,
    Usage,
)
from router.errors import TransferFailed, UpstreamError
from router.fleet import LocalWorker
from router.gateway.answer import answered_error
from router.gateway.blame import Failure
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import NEXT_OF_PAIR, PairPhase, PairStep
from router.handover import Leg, PairedRequest
from router.metric_families import HANDOVERS, LEG_FAILURES, LINK_KV_BYTES, UPSTREAM_ERRORS


class PairEnd(StrEnum):
    """How an attempt with two workers ended."""

    COMPLETED = "completed"
    PREFILL_FAILED = "prefill_failed"
    DECODE_FAILED = "decode_failed"
    TRANSFER_LATE = "transfer_late"
    """A link did not bring the KV in time."""
    REFUSED = "refused"
    """With an error that is the request's fault."""
    CLIENT_LEFT = "client_left"
    """Or its deadline passed, or this replica ended."""


class PairReservation(msgspec.Struct, eq=False):
    """Two attempts in the log, and a part of a link, in place of a `router.gateway.reservation.Reservation`.

    Attributes:
        gateway: Publishes, and counts.
        parsed: The request.
        prefill: The worker that prefills.
        decode: The worker that decodes.
        attempt: What was predicted of the prefill.
        decode_attempt: What was predicted of the decode.
        placed: What the log is told of the prefill.
        decode_placed: What the log is told of the decode.
        shipping: What the log is told of the link; None if it is no matter.
        offload: Why the prefill is where it is; None if there was no choice.
        too_late: Told if the KV does not come over the link in time; None once it is no matter.
        request: The request on its way; None until it is sent.
        prefill_s: How long the prefill leg took; 0 until it says so itself.
        end: How it ends, as far as is known; if nothing is said of it, since it is not wanted any more.
        phase: Where it stands.
    """

    gateway: Gateway
    parsed: ParsedRequest
    prefill: LocalWorker
    decode: LocalWorker
    attempt: Attempt
    decode_attempt: Attempt
    placed: Placed
    decode_placed: Placed
    shipping: Shipping | None
    offload: OffloadVerdict | None
    too_late: Callable[[], None] | None = None
    request: PairedRequest | None = None
    prefill_s: float = 0.0
    end: PairEnd = PairEnd.CLIENT_LEFT
    phase: PairPhase = PairPhase.UNMADE

    @property
    def prefilled(self) -> bool:
        """Whether the prefill leg is over, while anything is reserved."""
        return self.phase is PairPhase.SHIPPING or self.phase is PairPhase.DECODING

    @property
    def arrived(self) -> bool:
        """Whether the KV is at the decode worker, while anything is reserved."""
        return self.phase is PairPhase.DECODING

    @property
    def released(self) -> bool:
        """Whether nothing is reserved: before `make`, and after `release`."""
        return self.phase is PairPhase.UNMADE or self.phase is PairPhase.RELEASED

    @property
    def leg(self) -> Leg:
        """Whose answer or failure is heard now."""
        return Leg.DECODE if self.request is None else self.request.leg

    @property
    def local(self) -> LocalWorker:
        """The worker that gives the answer that is heard now, or is to blame for the failure."""
        return self.prefill if self.leg is Leg.PREFILL else self.decode

    @property
    def avoided(self) -> list[int]:
        """Slots of the workers that another attempt had better avoid: the failed leg's.

        Across a link, and as long as the KV has not arrived, it is as likely the link: then those on the
        other side of it, and not the decode worker that waited in vain.
        """
        if self.shipping is None or self.arrived:
            return [self.local.worker.slot]
        return self.gateway.registry.at_site(self.prefill.worker.site)

    @property
    def usage(self) -> bytes:
        """Where the prefill worker's counts are; empty while there are none."""
        return b"" if self.request is None else self.request.usage

    def make(self) -> None:
        """Reserve all three at once. From their publication on, `release` ends them whatever is raised here.

        Raises:
            OpRefused: One of them cannot be published: nothing is reserved.
        """
        gateway, attempt, shipping = self.gateway, self.attempt, self.shipping
        if shipping is None:
            gateway.log.publish(self.placed, self.decode_placed)
        else:
            gateway.log.publish(self.placed, self.decode_placed, shipping)
        self.phase = NEXT_OF_PAIR[self.phase][PairStep.MAKE]
        gateway.sending.at_workers(1)
        circuits, prefill = gateway.registry.circuits, self.prefill
        circuits.dispatched(prefill, attempt.placed_us)
        circuits.dispatched(self.decode, attempt.placed_us)
        if shipping is not None:
            gateway.sending.link_watch.begun(
                shipping, attempt.request_id, prefill.worker.slot, prefill.protocol, self._patience()
            )
        gateway.sending.stall_detector.prefilling(self)
        decision_s = gateway.now_s() - attempt.started_s
        gateway.metrics.decided(
            gateway.placing.decider.prefill_policy.name, attempt.chosen.reason, decision_s
        )

    def prefill_over(self) -> None:
        """The prefill leg ended well: its worker is free."""
        if self.phase is not PairPhase.PREFILLING:
            return
        self.phase = NEXT_OF_PAIR[self.phase][PairStep.PREFILL]
        gateway, attempt = self.gateway, self.attempt
        if self.usage:  # else the decode leg's answer said it
            self.prefill_s = gateway.now_s() - attempt.started_s
        if self.shipping is not None:
            gateway.sending.link_watch.prefilled(self.shipping.request_id)
        now_us = gateway.log.now_us()
        gateway.log.publish(Finished(attempt.request_id, now_us, now_us))
        self._pulled_from(now_us)
        gateway.sending.stall_detector.decoding(self)
        self._relieved()

    def _pulled_from(self, now_us: int) -> None:
        """The KV that waited for the end of the prefill leaves now, not when that was predicted."""
        said, hand_over = self.shipping, HAND_OVERS.get(self.prefill.protocol)
        if said is None or hand_over is None or hand_over.overlap_ratio:
            return
        end_us = now_us + said.end_us - said.start_us
        self.shipping = msgspec.structs.replace(said, at_us=now_us, start_us=now_us, end_us=end_us)
        self.gateway.log.publish(self.shipping)

    def shipped(self) -> None:
        """The KV is at the decode worker: it decodes, and the link is free."""
        if self.phase is not PairPhase.SHIPPING:
            return
        self.phase = NEXT_OF_PAIR[self.phase][PairStep.SHIP]
        gateway, attempt = self.gateway, self.decode_attempt
        now_us = gateway.log.now_us()
        circuits = gateway.registry.circuits
        circuits.succeeded(self.prefill, now_us, self.attempt.placed_us)
        circuits.released(self.prefill, now_us, self.attempt.placed_us)
        gateway.log.publish(FirstToken(attempt.request_id, now_us))
        if self.shipping is not None:
            gateway.sending.link_watch.arrived(self.shipping.request_id)
            gateway.log.publish(Shipped(attempt.request_id, now_us))
            gateway.metrics.labelled_sums[LINK_KV_BYTES].add((self.shipping.link, self.shipping.kv_bytes))
        self._relieved()

    def prefill_ended(self) -> None:
        """The answer began: all that comes before it is over."""
        self.prefill_over()
        self.shipped()
        self.gateway.sending.stall_detector.heard(self)

    def renew(self, left_us: int, now_us: int) -> None:
        """Reserve again what was lost because this replica was given up although it lives.

        Args:
            left_us: Log time up to which its placements were dropped.
            now_us: Log time, later than that.
        """
        if self.released or self.decode_placed.at_us > left_us:
            return
        publish, replace = self.gateway.log.publish, msgspec.structs.replace
        if not self.prefilled:
            self.placed = replace(self.placed, at_us=now_us, paths=())
            publish(self.placed)
        self.decode_placed = replace(self.decode_placed, at_us=now_us, paths=())
        publish(self.decode_placed)
        if self.arrived:
            publish(FirstToken(self.decode_placed.request_id, now_us))
        elif self.shipping is not None:
            self.shipping = replace(self.shipping, at_us=now_us)
            publish(self.shipping)

    def worker_failed(self, error: UpstreamError) -> list[Failure]:
        """Note that the leg that is heard now failed; return what may count against its worker, or both."""
        gateway, local, placed_us = self.gateway, self.local, self.attempt.placed_us
        gateway.registry.noticed(local, error, gateway.log.now_us())
        gateway.metrics.counts[UPSTREAM_ERRORS].add((local.worker.worker_id, error.code))
        self._leg_failed(error.code)
        failures = [Failure(local, placed_us, error.code, error.asked)]
        if isinstance(error, TransferFailed):
            failures.append(Failure(self.prefill, placed_us, error.code, error.asked))
        return failures

    def transfer_late(self) -> None:
        """The link is to blame, and neither worker."""
        self.end = PairEnd.TRANSFER_LATE

    def refused(self, status: int) -> None:
        """An error answer of one worker is the request's."""
        if status < 500:
            self.end = PairEnd.REFUSED
        else:
            self._leg_failed(answered_error(status).code)

    def release(self, *, abandoned: bool, prefilled_us: int = 0) -> None:
        """Release, once, what has not been released yet.

        Args:
            abandoned: Whether it is to be doubted that the workers computed anything that they have not said.
            prefilled_us: Log time of the first token, if that is known and may not have been said.
        """
        before = self.phase
        if before is PairPhase.UNMADE or before is PairPhase.RELEASED:
            return
        self.phase = NEXT_OF_PAIR[before][PairStep.RELEASE]
        arrived = before is PairPhase.DECODING
        prefilled = arrived or before is PairPhase.SHIPPING
        self.too_late = None
        gateway, attempt, decode_attempt = self.gateway, self.attempt, self.decode_attempt
        if prefilled_us:
            gateway.sending.stall_detector.heard(self)
        else:
            gateway.sending.stall_detector.forget(self)
        gateway.sending.at_workers(-1)
        now_us = gateway.log.now_us()
        circuits = gateway.registry.circuits
        if self.shipping is not None:
            gateway.sending.link_watch.dropped(self.shipping.request_id)
        if not prefilled:
            gateway.log.publish(Finished(attempt.request_id, now_us))
        if not arrived:
            circuits.released(self.prefill, now_us, attempt.placed_us)
        gateway.log.publish(Finished(decode_attempt.request_id, now_us, 0 if arrived else prefilled_us))
        circuits.released(self.decode, now_us, attempt.placed_us)
        self._relieved()
        arrived = arrived or prefilled_us > 0
        end = PairEnd.COMPLETED if prefilled_us else self.end
        gateway.metrics.counts[HANDOVERS].add((self.prefill.protocol, end.value))
        if not prefilled:
            gateway.placing.feedback.abandoned(self.parsed, attempt)
        if not arrived and self.decode_placed.paths:
            gateway.placing.feedback.abandoned(self.parsed, decode_attempt)

    def _patience(self) -> Patience | None:
        """How long the KV may take."""
        if self.offload is None or self.too_late is None:
            return None
        local_s = self.offload.local_s
        return Patience(self.offload.remote_s, local_s if local_s >= 0 else inf, self.too_late)

    def _leg_failed(self, code: str) -> None:
        leg = self.leg
        self.end = PairEnd.PREFILL_FAILED if leg is Leg.PREFILL else PairEnd.DECODE_FAILED
        self.gateway.metrics.counts[LEG_FAILURES].add((self.prefill.protocol, leg.value, code))
        if self.shipping is not None:
            self.gateway.sending.link_watch.failed(self.shipping.request_id, self.local.worker.worker_id)

    # What is told and learned of it.

    def told(self) -> dict[str, object]:
        """Fields of the request's log line."""
        fields: dict[str, object] = {
            "worker_id": self.decode_attempt.worker_id,
            "prefill_worker_id": self.attempt.worker_id,
            "decode_worker_id": self.decode_attempt.worker_id,
            "handover": self.prefill.protocol,
        }
        if self.shipping is not None:
            fields["link"] = self.shipping.link
            fields["kv_bytes"] = self.shipping.kv_bytes
        if self.offload is not None:
            fields["offload"] = self.offload.reason
        return fields

    def understood(self, prefill: Usage | None, decode: Usage | None) -> Usage | None:
        """What both workers counted, as one.

        What was cached only the prefill worker knows: SGLang's decode worker repeats what that one says, and
        so does vLLM's behind NIXL (``remote_prefill_cached_tokens`` in its v1/engine/output_processor.py), or
        it counts what its own cache had before the transfer. So nothing of it says what a decode worker has
        lost. What was generated only the decode worker knows, and a stream says it only if the client asked.
        """
        if prefill is not None:
            prefill = self.gateway.placing.feedback.understood(self.attempt.worker_id, prefill)
        counted = decode or prefill
        if counted is None:
            return None
        return Usage(
            counted.prompt_tokens,
            None if prefill is None else prefill.cached_tokens,
            None if decode is None else decode.completion_tokens,
            possible=all(each is None or each.possible for each in (prefill, decode)),
        )

    def learn(self, usage: Usage, first_byte_s: float, now_us: int) -> bool:
        """Learn from a completed answer.

        Where both legs go at once the prefill leg ends when its KV has been sent: what of that was
        predicted to be exposed is no prefill.

        Args:
            usage: See `understood`.
            first_byte_s: Monotonic seconds of the first body byte.
            now_us: Log time.

        Returns:
            True if it shows that the prefill worker has lost its cache.
        """
        gateway, attempt = self.gateway, self.attempt
        transfer_s = attempt.chosen.transfer_s
        concurrent = gateway.handovers[self.prefill.protocol].concurrent
        prefill_s: float | None = None
        if self.prefill_s:
            prefill_s = max(self.prefill_s - transfer_s, 0.0) if concurrent else self.prefill_s
        flushed = gateway.placing.feedback.answered(self.parsed, attempt, usage, prefill_s, now_us)
        if usage.completion_tokens is None or not usage.possible:
            return flushed
        if not self.parsed.stream:
            if not self.prefill_s:
                return flushed
            first_byte_s = attempt.started_s + self.prefill_s + (0.0 if concurrent else transfer_s)
        gateway.placing.feedback.decoded(
            self.decode_attempt.worker_id, gateway.now_s() - first_byte_s, usage.completion_tokens, now_us
        )
        return flushed

    def _relieved(self) -> None:
        if self.gateway.fleet.relieved:
            self.gateway.placing.room.changed()
