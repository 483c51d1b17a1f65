"""The reservation of one attempt on two workers and the link between them, until its release.

    prefill   Placed ──prefill leg over──────────────> Finished
    decode    Placed ──KV arrived──> FirstToken ─────> Finished
    link      Shipping ──KV arrived──> Shipped      (or the decode worker's Finished)

Both are ordinary attempts in the log. Room at the decode worker is reserved before anything is sent: its
engine makes room for the KV before the prefill begins. `release` ends all that has not ended yet, each once.

A failed leg counts against its own worker only; the partner is released without an outcome. KV that does not
come after a good prefill leg (`TransferFailed`) counts for both circuits: either may be at fault, and the
guilty one fails with other partners, too. So a prefill succeeds only when its KV has arrived.
"""

from collections.abc import Callable
from enum import StrEnum
from math import inf

import msgspec

from policies import HAND_OVERS, Attempt, Finished, FirstToken, Placed, Shipped, Shipping, Usage
from policies.disaggregation import LinkWatch, OffloadVerdict, Patience
from router.errors import TransferFailed, UpstreamError
from router.fleet import LocalWorker
from router.gateway.answer import answered_error
from router.gateway.blame import Failure
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.handover import Leg, PairedRequest
from router.metric_families import HANDOVERS, LEG_FAILURES, LINK_KV_BYTES, UPSTREAM_ERRORS
from router.pairs.pair_phase import NEXT_OF_PAIR, PairPhase
from router.pairs.stall_detector import StallDetector


class PairEnd(StrEnum):
    """End of an attempt with two workers."""

    COMPLETED = "completed"
    PREFILL_FAILED = "prefill_failed"
    DECODE_FAILED = "decode_failed"
    TRANSFER_LATE = "transfer_late"
    """A link did not bring the KV in time."""
    REFUSED = "refused"
    """An error that is the request's fault."""
    CLIENT_LEFT = "client_left"
    """Or its deadline passed, or this replica ended."""


class PairReservation(msgspec.Struct, eq=False):
    """Two attempts in the log, and a part of a link, in place of a `router.gateway.reservation.Reservation`.

    Attributes:
        shipping: Published of the link; None without one.
        offload: The choice of the prefill's site; None if there was no choice.
        too_late: Called if the KV is late on the link; None if that does not matter.
        prefill_s: Duration of the prefill leg by its own answer; 0 until then.
        end: The end known so far; `CLIENT_LEFT` until something else is reported.
    """

    gateway: Gateway
    link_watch: LinkWatch
    stall_detector: StallDetector
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
        """True after the prefill leg, while anything is reserved."""
        return self.phase is PairPhase.SHIPPING or self.phase is PairPhase.DECODING

    @property
    def arrived(self) -> bool:
        """True while the KV is at the decode worker and anything is reserved."""
        return self.phase is PairPhase.DECODING

    @property
    def released(self) -> bool:
        """True if nothing is reserved: before `make`, and after `release`."""
        return self.phase is PairPhase.UNMADE or self.phase is PairPhase.RELEASED

    @property
    def leg(self) -> Leg:
        """The leg whose answer or failure is heard now."""
        return Leg.DECODE if self.request is None else self.request.leg

    @property
    def local(self) -> LocalWorker:
        """The worker whose answer or failure is heard now."""
        return self.prefill if self.leg is Leg.PREFILL else self.decode

    @property
    def avoided(self) -> list[int]:
        """Slots of the workers that another attempt should avoid: the failed leg's.

        Before the KV arrived over a link, the link is as suspect as a worker: then all workers on its other
        side, and not the decode worker that waited in vain.
        """
        if self.shipping is None or self.arrived:
            return self.local.slots
        return self.gateway.registry.at_site(self.prefill.worker.site)

    def avoided_at_least(self, error: UpstreamError) -> list[int]:
        """Return only the prefill worker if the KV did not come: the other side may serve it, too."""
        return self.prefill.slots if isinstance(error, TransferFailed) else []

    @property
    def usage(self) -> bytes:
        """The end of the prefill worker's answer, with its counts; empty before."""
        return b"" if self.request is None else self.request.usage

    def make(self) -> None:
        """Reserve all three; raise `OpRefused` if that fails. Once they are, `release` must follow."""
        gateway, attempt, shipping = self.gateway, self.attempt, self.shipping
        if shipping is None:
            gateway.log.publish(self.placed, self.decode_placed)
        else:
            gateway.log.publish(self.placed, self.decode_placed, shipping)
        self.phase = NEXT_OF_PAIR[self.phase][PairPhase.PREFILLING]
        gateway.sending.at_workers += 1
        gateway.sending.limit()
        circuits, prefill = gateway.registry.circuits, self.prefill
        circuits.dispatched(prefill, attempt.placed_us)
        circuits.dispatched(self.decode, attempt.placed_us)
        if shipping is not None:
            self.link_watch.begun(
                shipping, attempt.request_id, attempt.chosen.slot, prefill.protocol, self._patience()
            )
        self.stall_detector.prefilling(self)
        decision_s = gateway.now_s() - attempt.started_s
        rules = gateway.placing.decider.rules
        policy = rules.prefill_policy or rules.policy
        gateway.metrics.decided((policy.name, attempt.chosen.reason, decision_s))

    def prefill_over(self) -> None:
        """Free the prefill worker: its leg ended well."""
        if self.phase is not PairPhase.PREFILLING:
            return
        self.phase = NEXT_OF_PAIR[self.phase][PairPhase.SHIPPING]
        gateway, attempt = self.gateway, self.attempt
        if self.usage:  # otherwise the decode leg's answer ended it
            self.prefill_s = gateway.now_s() - attempt.started_s
        if self.shipping is not None:
            self.link_watch.prefilled(self.shipping.request_id)
        now_us = gateway.log.now_us()
        gateway.log.publish(Finished(attempt.request_id, now_us, now_us))
        self._pulled_from(now_us)
        self.stall_detector.decoding(self)
        self._relieved()

    def _pulled_from(self, now_us: int) -> None:
        """Publish that pulled KV leaves now, at the real end of the prefill, not at the predicted one."""
        shipping, hand_over = self.shipping, HAND_OVERS.get(self.prefill.protocol)
        if shipping is None or hand_over is None or hand_over.overlap_ratio:
            return
        end_us = now_us + shipping.end_us - shipping.start_us
        self.shipping = msgspec.structs.replace(shipping, at_us=now_us, start_us=now_us, end_us=end_us)
        self.gateway.log.publish(self.shipping)

    def shipped(self) -> None:
        """Free the link: the KV is at the decode worker, which decodes."""
        if self.phase is not PairPhase.SHIPPING:
            return
        self.phase = NEXT_OF_PAIR[self.phase][PairPhase.DECODING]
        gateway, attempt = self.gateway, self.decode_attempt
        now_us = gateway.log.now_us()
        circuits = gateway.registry.circuits
        circuits.succeeded(self.prefill, now_us, self.attempt.placed_us)
        circuits.released(self.prefill, now_us, self.attempt.placed_us)
        gateway.log.publish(FirstToken(attempt.request_id, now_us))
        if self.shipping is not None:
            self.link_watch.arrived(self.shipping.request_id)
            gateway.log.publish(Shipped(attempt.request_id, now_us))
            gateway.metrics.labelled_sums[LINK_KV_BYTES].add((self.shipping.link, self.shipping.kv_bytes))
        self._relieved()

    def prefill_ended(self) -> None:
        """End all that comes before the answer, which began."""
        self.prefill_over()
        self.shipped()
        self.stall_detector.answered(self)

    def renew(self, left_us: int, now_us: int) -> None:
        """Publish the reservations again if they were dropped; see `RequestExchange.renew`."""
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
        """Note that the leg heard now failed; return the failures that may count."""
        gateway, local, placed_us = self.gateway, self.local, self.attempt.placed_us
        gateway.registry.noticed(local, error, gateway.log.now_us())
        gateway.metrics.counts[UPSTREAM_ERRORS].add((local.worker.worker_id, error.code))
        self._leg_failed(error.code)
        failures = [Failure(local, placed_us, error.code, error.asked)]
        if isinstance(error, TransferFailed):
            failures.append(Failure(self.prefill, placed_us, error.code, error.asked))
        return failures

    def transfer_late(self) -> None:
        """Blame the link, and neither worker."""
        self.end = PairEnd.TRANSFER_LATE

    def refused(self, status: int) -> None:
        """Note an error answer of one worker, the request's fault below 500."""
        if status < 500:
            self.end = PairEnd.REFUSED
        else:
            self._leg_failed(answered_error(status).code)

    def release(self, *, abandoned: bool, prefilled_us: int = 0) -> None:
        """Release, once, all that is still reserved; see `Reservation.release`."""
        before = self.phase
        if before is PairPhase.UNMADE or before is PairPhase.RELEASED:
            return
        self.phase = NEXT_OF_PAIR[before][PairPhase.RELEASED]
        arrived = before is PairPhase.DECODING
        prefilled = arrived or before is PairPhase.SHIPPING
        self.too_late = None
        gateway, attempt, decode_attempt = self.gateway, self.attempt, self.decode_attempt
        if prefilled_us:
            self.stall_detector.answered(self)
        else:
            self.stall_detector.forget(self)
        gateway.sending.at_workers -= 1
        gateway.sending.limit()
        now_us = gateway.log.now_us()
        circuits = gateway.registry.circuits
        if self.shipping is not None:
            self.link_watch.dropped(self.shipping.request_id)
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
        if self.offload is None or self.too_late is None:
            return None
        local_s = self.offload.local_s
        return Patience(self.offload.remote_s, local_s if local_s >= 0 else inf, self.too_late)

    def _leg_failed(self, code: str) -> None:
        leg = self.leg
        self.end = PairEnd.PREFILL_FAILED if leg is Leg.PREFILL else PairEnd.DECODE_FAILED
        self.gateway.metrics.counts[LEG_FAILURES].add((self.prefill.protocol, leg.value, code))
        if self.shipping is not None:
            self.link_watch.failed(self.shipping.request_id, self.local.worker.worker_id)

    # Reports and lessons.

    def log_fields(self) -> dict[str, object]:
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
        """Combine the counts of both workers.

        Only the prefill worker knows the cached tokens: a decode worker of SGLang or of vLLM behind NIXL
        (``remote_prefill_cached_tokens`` in v1/engine/output_processor.py) repeats its number, or counts its
        own cache before the transfer. Only the decode worker knows the generated tokens, which a stream
        reports only if the client asked.
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
        """Learn from a completed answer; True if the prefill worker has lost its cache.

        Where both legs go at once the prefill leg ends when its KV has been sent: the predicted exposed
        transfer is no part of the prefill.
        """
        gateway, attempt = self.gateway, self.attempt
        transfer_s = attempt.chosen.transfer_s
        concurrent = HAND_OVERS[self.prefill.protocol].concurrent
        prefill_s: float | None = None
        if self.prefill_s:
            prefill_s = max(self.prefill_s - transfer_s, 0.0) if concurrent else self.prefill_s
        flushed = gateway.placing.feedback.answered(
            self.parsed, attempt, usage, prefill_s, now_us, decodes=False
        )
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
