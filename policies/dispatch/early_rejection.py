"""Whether a request will miss what is promised, and is better rejected before it costs anything.

A request that waits for a minute and then misses its service level has cost the fleet as much as one that
meets it. Past saturation more and more are of that kind, and goodput falls although everybody works. So
who is predicted to miss is told so at once (429, `Miss`), and whoever comes later finds a shorter queue.

**Time to first token**, while others go first:

    waited + r · (V + A/n) + s        V   backlog of the chosen worker
                                      A   predicted work of the tickets with a smaller key, in its lane
                                      n   workers that serve the lane
                                      r   what queues really take of the predicted time (`Admission`)
                                      s   its own prefill

Those who come later and overtake are not counted: how many, nobody knows. So this is what it waits at least.
Who has been let in is judged again as it waits, by ``waited + r·V + s`` only: what is left of the queue
ahead is a guess, and nobody is sent away after a wait but for certain.

A request that two workers share (`policies.disaggregation.decode_selection`) waits for the room of a decode
worker if that takes longer than its turn, and what of the transfer the prefill does not overlap comes on top.

**Time per output token**, by the load of the decode at the end of its prefill (`policies.estimates.decodes`),
as a mean over the workers that it may be decoded on.

A promise that the request could not be given on an idle fleet either is none: its own prefill, or a decode
all alone, takes longer. It is not rejected for that; to come again later would not help it.
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
"""Sooner than in a second nothing is different."""

SLO_UNREACHABLE = "slo_unreachable"
"""Reason of the `Shed` of a request that would miss its service level."""


@dataclass(frozen=True)
class ServiceLevel:
    """What is promised; 0 promises nothing."""

    ttft_slo_s: float = setting(
        0.0,
        "Time to first token that is promised, in seconds: a request predicted to miss it is rejected (429) "
        "before it costs anything. 0: nobody is rejected for it.",
        flag="ttft-slo-secs",
        ge=0,
        live=True,
        common=True,
    )
    ttft_slo_s_per_1k_tokens: float = setting(
        0.0,
        "What is added to admission.ttft_slo_s for each 1,000 tokens of the prompt, in seconds.",
        flag="ttft-slo-secs-per-1k-tokens",
        ge=0,
        live=True,
    )
    tpot_slo_s: float = setting(
        0.0,
        "Time per output token that is promised, in seconds: a request is rejected (429) if so many would be "
        "decoding when its prefill ends that it misses it. 0: nobody is rejected for it.",
        flag="tpot-slo-secs",
        ge=0,
        live=True,
    )

    @property
    def promises(self) -> bool:
        """Whether it promises anything."""
        return self.ttft_slo_s > 0 or self.ttft_slo_s_per_1k_tokens > 0 or self.tpot_slo_s > 0

    def ttft_s_of(self, prompt_tokens: float) -> float:
        """Time to first token that a prompt of this length is promised; 0 if none."""
        return self.ttft_slo_s + self.ttft_slo_s_per_1k_tokens * prompt_tokens / 1000.0


class Miss(msgspec.Struct, frozen=True, gc=False):
    """A promise that would be broken.

    Attributes:
        what: ``ttft`` or ``tpot``.
        predicted_s: What it would be.
        promised_s: What is promised.
        retry_after_s: When it may be kept, seconds from now.
    """

    what: str
    predicted_s: float
    promised_s: float
    retry_after_s: float

    @property
    def shed(self) -> Shed:
        """The rejection of the request."""
        detail = f"{self.what} of {self.predicted_s:.3g} s predicted, {self.promised_s:.3g} s promised"
        return Shed(SLO_UNREACHABLE, self.retry_after_s, detail)


class Outlook(msgspec.Struct, frozen=True, gc=False):
    """What a request looks forward to.

    Attributes:
        slot: Of its chosen worker.
        slots: Who may take it.
        lane: Its lane (`policies.state.waiting`).
        key_us: Its key; 0 if nobody goes before it.
        service_s: s: predicted prefill on the chosen worker.
        prompt_tokens: Of its prompt.
        waited_s: Since it arrived.
        let_in: Whether it was judged before, and waits.
        decoders: Who may decode it; None: who may take it.
        room_s: Until one of them has room for it.
        transfer_s: What the transfer to it adds.
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
    """Judges requests.

    Args:
        level: What is promised.
        fleet: What is known of the workers, and of who waits.
        decode_fit: What is learned of the decode of a worker class.
    """

    def __init__(
        self, level: ServiceLevel, fleet: FleetState, decode_fit: Callable[[str], DecodeFit]
    ) -> None:
        self.level = level
        self._fleet = fleet
        self._decode_fit = decode_fit

    def judge(self, outlook: Outlook, now_us: int) -> Miss | None:
        """Whether a request would miss its service level, and which.

        Args:
            outlook: What it looks forward to.
            now_us: Log time.
        """
        fleet, slot = self._fleet, outlook.slot
        worker_class = fleet.at_slot(slot).worker_class
        ratio = fleet.early_ratio(worker_class)
        ahead_s = 0.0
        if fleet.tickets.count and not outlook.let_in:
            ahead_s = fleet.tickets.ahead_service_us(outlook.lane, outlook.key_us) / 1e6
        queue_s = ratio * (fleet.loads.backlog_at_s(slot, now_us) + ahead_s / len(outlook.slots))
        queue_s = max(queue_s, outlook.room_s)
        own_s, promised_s = (
            outlook.service_s + outlook.transfer_s,
            self.level.ttft_s_of(outlook.prompt_tokens),
        )
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
        """Whether too many would be decoding when its prefill ends."""
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
        # Nobody let in, of n decodes n·exp(-t/t_d) go on after t seconds.
        excess = requests / max(fit.requests_within(promised_s), 1.0)
        return Miss("tpot", predicted_s, promised_s, max(fit.decode_s * log(excess), RETRY_AFTER_S_MIN))
