"""An attempt of a request at the two workers that share it (`router.gateway.attempt`)."""

from router.errors import HandoverFailed
from router.gateway.attempt import WorkerAttempt
from router.pairs.pair_reservation import PairReservation


class PairAttempt(WorkerAttempt, eq=False, kw_only=True):
    """An attempt at two workers that share a request (`router.handover.PairSink`)."""

    pair: PairReservation

    def prefill_ended(self) -> None:
        """Free the prefill worker."""
        self.pair.prefill_over()
        if self.record.spans is not None:
            self.record.spans.leg_over(self.gateway.now_s())

    def shipped(self) -> None:
        """Free the link: the KV is at the decode worker."""
        self.pair.shipped()
        if self.record.spans is not None:
            self.record.spans.leg_over(self.gateway.now_s())

    def late(self) -> None:
        """Prefill on this side of the link instead: the KV is late, and that is now faster.

        If no worker here can, or the rule allows no other attempt, the KV may still arrive.
        """
        pair = self.pair
        if pair.arrived or pair.released or not self.retries.may_leave(pair.avoided):
            return
        pair.transfer_late()
        error = HandoverFailed("The KV did not come over the link in time.", code="transfer_late")
        self.retries.leave(self, pair.prefill, pair.avoided, error)
