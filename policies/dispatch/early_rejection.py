"""Early rejection of requests that would miss their promised service level.

A request that waits for a minute and then misses its service level has cost the fleet as much as one that
meets it: past saturation goodput falls although all workers are busy. Rejected at once (429, `Miss`), it
leaves a shorter queue.

**Time to first token**, while others go first:

    waited + r · (V + A/n) + s        V   backlog of the chosen worker
                                      A   predicted work of the tickets with a smaller key, in its lane
                                      n   workers that serve the lane
                                      r   ratio of real to predicted queueing time (`Admission`)
                                      s   its own prefill

This is the least wait: later requests that overtake are not counted. A waiting request is judged again
without A, which is a guess: a rejection after a wait must be certain. A pair waits for room at a decode
worker, if that takes longer than the turn, and for its exposed transfer
(`policies.disaggregation.decode_selection`).

**Time per output token**, by the decode load at the end of the prefill (`policies.estimates.decodes`), as a
mean over the workers that may decode the request.

A promise that an idle fleet would break as well (by the prefill, or a decode alone) rejects nothing: coming
again later would not help.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import msgspec

from policies.declared import setting
from policies.estimates.decodes import DecodeFit, decoding_after
from policies.fleet.fleet import FleetState
from policies.pricing.views import Shed, Slots

RETRY_AFTER_S_MIN = 1.0
"""Least Retry-After: the load does not change within a second."""

SLO_UNREACHABLE = "slo_unreachable"
"""Reason of the `Shed` of a request that would miss its service level."""


@dataclass(frozen=True)
class ServiceLevel:
    """Promises; 0 promises nothing."""

    ttft_slo_s: float = setting(
        0.0,
        "Time to first token that is promised, in seconds: a request predicted to miss it is rejected (429) "
        "before it costs anything. 0: no request is rejected for it.",
        flag="ttft-slo-secs",
        ge=0,
        live=True,
        common=True,
    )
    ttft_slo_s_per_1k_tokens: float = setting(
        0.0,
        "Time added to admission.ttft_slo_s for each 1,000 tokens of the prompt, in seconds.",
        flag="ttft-slo-secs-per-1k-tokens",
        ge=0,
        live=True,
    )
    tpot_slo_s: float = setting(
        0.0,
        "Time per output token that is promised, in seconds: a request is rejected (429) if it would miss it "
        "beside the requests that will be decoding when its prefill ends. 0: no request is rejected for it.",
        flag="tpot-slo-secs",
        ge=0,
        live=True,
    )

    @property
    def promises(self) -> bool:
        """True if anything is promised."""
        return self.ttft_slo_s > 0 or self.ttft_slo_s_per_1k_tokens > 0 or self.tpot_slo_s > 0

    def ttft_s_of(self, prompt_tokens: float) -> float:
        """Promised time to first token of a prompt of this length; 0 if none."""
        return self.ttft_slo_s + self.ttft_slo_s_per_1k_tokens * prompt_tokens / 1000.0


class Miss(msgspec.Struct, frozen=True, gc=False):
    """A promise, ``ttft`` or ``tpot``, that would be broken, and the seconds until it may be kept."""

    what: str
    predicted_s: float
    promised_s: float
    retry_after_s: float

    @property
    def shed(self) -> Shed:
        """Rejection of the request."""
        detail = f"{self.what} of {self.predicted_s:.3g} s predicted, {self.promised_s:.3g} s promised"
        return Shed(SLO_UNREACHABLE, self.retry_after_s, detail)


class Outlook(msgspec.Struct, frozen=True, gc=False):
    """Prospects of a request.

    Attributes:
        key_us: Its key; 0 if no request goes before it.
        service_s: s: predicted prefill on the chosen worker.
        let_in: True if it was judged before, and waits.
        decoders: Workers that may decode it; None: ``slots``.
        room_s: Seconds until one of them has room for it.
        transfer_s: Seconds that the transfer to it adds.
    """

    slot: int
    slots: Slots
    lane: str
    key_us: int
    service_s: float
    prompt_tokens: float
    waited_s: float
    let_in: bool
    decoders: Slots | None = None
    room_s: float = 0.0
    transfer_s: float = 0.0


class EarlyRejection:
    """Judges requests by promises; ``decode_fit`` is the learned decode model, by worker class."""

    def __init__(
        self, level: ServiceLevel, fleet: FleetState, decode_fit: Callable[[str], DecodeFit]
    ) -> None:
        self.level = level
        self._fleet = fleet
        self._decode_fit = decode_fit

    def judge(self, outlook: Outlook, now_us: int) -> Miss | None:
        """Return the promise that a request would miss; None if it misses none."""
        fleet, slot = self._fleet, outlook.slot
        worker_class = fleet.at_slot(slot).worker_class
        ratio = fleet.early_ratio(worker_class)
        ahead_s = 0.0
        if fleet.tickets.count and not outlook.let_in:
            ahead_s = fleet.tickets.ahead_service_us(outlook.lane, outlook.key_us) / 1e6
        queue_s = ratio * (fleet.loads.backlog_at_s(slot, now_us) + ahead_s / len(outlook.slots))
        queue_s = max(queue_s, outlook.room_s)
        own_s = outlook.service_s + outlook.transfer_s
        promised_s = self.level.ttft_s_of(outlook.prompt_tokens)
        if 0 < promised_s >= own_s:
            predicted_s = outlook.waited_s + queue_s + own_s
            if predicted_s > promised_s:
                late_s = queue_s + own_s - promised_s
                return Miss("ttft", predicted_s, promised_s, max(late_s, RETRY_AFTER_S_MIN))
        if self.level.tpot_slo_s > 0 and not outlook.let_in:
            return self._judge_decode(outlook, ahead_s, queue_s + own_s, self.level.tpot_slo_s)
        return None

    def _judge_decode(
        self, outlook: Outlook, ahead_s: float, prefill_s: float, promised_s: float
    ) -> Miss | None:
        slots = outlook.slots if outlook.decoders is None else outlook.decoders
        decoder = outlook.slot if outlook.decoders is None else slots.item(0)
        fit = self._decode_fit(self._fleet.at_slot(decoder).worker_class)
        if not fit.known or fit.tpot_s(1.0) > promised_s:
            return None
        loads = self._fleet.loads
        prefilling = loads.prefill_requests[slots].sum().item()
        decoding = loads.inflight_requests[slots].sum().item() - prefilling
        lane = self._fleet.tickets.lane_totals().get(outlook.lane)
        waiting = (
            lane.count * ahead_s * 1e6 / lane.service_us if lane is not None and lane.service_us else 0.0
        )
        workers = len(slots)
        requests = 1.0 + decoding_after(
            prefill_s, decoding / workers, (prefilling + waiting) / workers, fit.decode_s
        )
        predicted_s = fit.tpot_s(requests)
        if predicted_s <= promised_s:
            return None
        # Without further requests, of n decodes n·exp(-t/t_d) go on after t seconds.
        excess = requests / max(fit.requests_within(promised_s), 1.0)
        return Miss("tpot", predicted_s, promised_s, max(fit.decode_s * log(excess), RETRY_AFTER_S_MIN))
