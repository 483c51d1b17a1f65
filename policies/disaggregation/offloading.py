"""Choice of the side of a link, for one replica and a request with candidates on several sides (`offload`).

place on each side ──> an offer of each ──> the rule ──> the side's choice, and a `Shipping` when it goes
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from policies.disaggregation.candidate_sites import CandidatesBySite
from policies.disaggregation.decode_selection import DecodeView
from policies.disaggregation.link_states import LinkState
from policies.disaggregation.offload import Offer, Offload, OffloadReason, OffloadVerdict
from policies.fleet.fleet import FleetState
from policies.pricing.views import Candidates, Chosen, RequestView, Shed, Slots
from policies.scoring import Policy
from policies.scoring.placement import place
from policies.state.links import Quote
from policies.state.ops import Shipping
from policies.state.waiting_lines import Ticket
from radix import DURATION_US_MAX, KV_BYTES_MAX, whole

VERDICTS_KEPT = 64
"""Latest requests whose verdicts are kept."""

PACE_S = 0.002
"""A shorter wait for a link is no reason to wait: a look at the queue takes longer."""


LINK_GRACE_US = 250_000
"""Time for which the room of a link is left to another replica's request. That one asks again every 20 ms, or
somewhat less often where many wait."""


class PastVerdict(msgspec.Struct, frozen=True, gc=False):
    """Verdict on a request that went, with log time and prefill attempt."""

    at_us: int
    request_id: str
    verdict: OffloadVerdict


class Line(NamedTuple):
    """Queue in the gateway for the workers of one side, for each worker there.

    Attributes:
        ahead_s: Seconds of work that goes before the request.
        behind: Requests that go behind it.
        work_s: Seconds of work of all.
    """

    ahead_s: float
    behind: float
    work_s: float


NO_LINE = Line(0.0, 0.0, 0.0)


class Placing(NamedTuple):
    """Destination of a request, if it is its turn: side, worker among its candidates, and the reason.

    Attributes:
        verdict: None if there was no choice.
        full_link: Link that the request would have to wait for; empty for none.
    """

    candidates: Candidates
    chosen: Chosen | Shed
    verdict: OffloadVerdict | None = None
    full_link: str = ""


class Offloading:
    """Decides on which side of a link requests are prefilled.

    Attributes:
        counts: Requests that went, by reason.
        above_cap: By link: requests with more KV than can be kept below its cap.
        latest: Newest verdicts.
    """

    def __init__(
        self,
        fleet: FleetState,
        offload: Offload,
        *,
        replica: str,
    ) -> None:
        self.offload = offload
        self.counts: Counter[OffloadReason] = Counter()
        self.above_cap: Counter[str] = Counter()
        self.latest: deque[PastVerdict] = deque(maxlen=VERDICTS_KEPT)
        self._fleet = fleet
        self._replica = replica
        self._left_to: dict[str, tuple[str, int, int]] = {}
        """By link: ticket that its room was left to, since when, and when last."""

    def rehearsing(self) -> "Offloading":
        """Return a copy that decides the same, with a memory of its own."""
        other = Offloading(self._fleet, self.offload.rehearsing(), replica=self._replica)
        other._left_to = dict(self._left_to)
        return other

    @property
    def threshold_tokens(self) -> int | None:
        """t: by hand, else by the slow loop; None while there is none."""
        if self.offload.rules.threshold_tokens:
            return self.offload.rules.threshold_tokens
        plan = self._fleet.offload_plan
        return plan.threshold_tokens if plan is not None and plan.threshold_tokens >= 0 else None

    def place(
        self,
        candidates: Candidates,
        by_site: CandidatesBySite,
        decode_view: DecodeView,
        policy: Policy,
        bucket: int,
        line_of: Callable[[str, Chosen, int], Line],
        *,
        failed: bool,
    ) -> Placing:
        """Choose a side and a worker.

        ``line_of`` gives the queue of a side by its link, its choice and its number of workers; ``failed``
        says that a worker has failed the request before.
        """
        fleet, view = self._fleet, decode_view.request
        local_offer = local = None
        if len(by_site.local):
            local = self._placed(view, candidates, by_site.local, policy, bucket)
            if isinstance(local.chosen, Chosen):
                local_offer = _offer(fleet.rules.site, "", view, local.candidates, local.chosen, line_of)
        remotes: dict[str, Placing] = {}
        offers: list[Offer] = []
        for side in () if self.offload.rules.disable_remote_prefill else by_site.remote:
            remote = self._placed(view, candidates, side.slots, policy, bucket)
            if isinstance(remote.chosen, Chosen):
                remotes[side.link] = remote
                offer = _offer(side.site, side.link, view, remote.candidates, remote.chosen, line_of)
                offers.append(_crossing(offer, decode_view, remote.chosen))
        if not offers:
            return local or Placing(candidates, place(view, None, policy))
        fixed = self.offload.rules.threshold_tokens > 0
        sides = self.offload.sides(offers, candidates.now_us)
        verdict = self.offload.judge(local_offer, sides, self.threshold_tokens, fixed=fixed, failed=failed)
        self.offload.observe(local_offer, sides, verdict)
        if verdict.remote:
            full_link = verdict.link if verdict.wait_s > PACE_S else ""
            return remotes[verdict.link]._replace(verdict=verdict, full_link=full_link)
        if local is None:
            return Placing(candidates, place(view, None, policy), verdict)
        return local._replace(verdict=verdict)

    def helped(
        self,
        candidates: Candidates,
        by_site: CandidatesBySite,
        decode_view: DecodeView,
        policy: Policy,
        bucket: int,
        verdict: OffloadVerdict,
        slot: int,
        waits_s: float,
    ) -> Placing | None:
        """Let the idle worker in a slot, on another side, take a request that waits, if that is sooner.

        ``verdict`` is that of the side where it waits, ``waits_s`` its predicted time to the first token
        there.

        Returns:
            None if it had better wait, or must.
        """
        link = decode_view.link(slot)
        spare = link == verdict.link and verdict.state is LinkState.ABUNDANT and verdict.wait_s <= PACE_S
        if (
            not self.offload.rules.helps
            or link == verdict.way
            or (link and not (spare and verdict.reason in _CHOSEN_LOCAL))
        ):
            return None
        placing = self._placed(decode_view.request, candidates, np.array([slot]), policy, bucket)
        chosen = placing.chosen
        if isinstance(chosen, Shed) or chosen.estimated_ttft_s + (verdict.link_s if link else 0.0) >= waits_s:
            return None
        site = next((side.site for side in by_site.remote if side.link == link), self._fleet.rules.site)
        reason = OffloadReason.LOCAL_BUSY if link else OffloadReason.REMOTE_BUSY
        return placing._replace(
            verdict=msgspec.structs.replace(verdict, remote=bool(link), site=site, reason=reason)
        )

    def shipping(
        self, request_id: str, decode_view: DecodeView, chosen: Chosen, held_tokens: float, now_us: int
    ) -> Shipping | None:
        """Reservation of a link for the KV of a request, by its decode attempt; None if it crosses none."""
        link = decode_view.link(chosen.slot)
        if not link or not decode_view.kv.known:
            return None
        transfer = _transfer(decode_view, chosen, held_tokens)
        quote = self._quoted(link, transfer, now_us)
        if quote is None:
            return None
        ready_us = now_us + whole(transfer.ready_s * 1e6, DURATION_US_MAX)
        start_us = quote.start_us if quote.wait_s <= PACE_S else ready_us
        return Shipping(
            request_id,
            now_us,
            self._replica,
            link,
            whole(transfer.kv_bytes, KV_BYTES_MAX),
            start_us,
            start_us + whole(quote.send_s * 1e6, DURATION_US_MAX),
            whole(transfer.ready_bytes, KV_BYTES_MAX) if quote.ready_us else 0,
            quote.ready_us,
        )

    def full_link(self, decode_view: DecodeView, chosen: Chosen, now_us: int) -> str:
        """Link without room for the KV of a prefill worker; empty if it has room.

        The worker that takes a request may be another than the one by which its side was judged.
        """
        link = decode_view.link(chosen.slot) if decode_view.splits(chosen.slot) else ""
        if not link or not decode_view.kv.known:
            return ""
        transfer = _transfer(decode_view, chosen, decode_view.held_tokens(chosen.slot))
        quote = self._quoted(link, transfer, now_us)
        return link if quote is not None and quote.wait_s > PACE_S else ""

    def leave(self, link: str, best: Ticket, now_us: int) -> None:
        """Remember that the room of a link is left to the first of the requests that wait for it."""
        request_id, since_us, latest_us = self._left_to.get(link, ("", now_us, now_us))
        if request_id != best.request_id or now_us - latest_us > LINK_GRACE_US:
            since_us = now_us
        self._left_to[link] = (best.request_id, since_us, now_us)

    def left_unused(self, link: str, best: Ticket, now_us: int) -> bool:
        """True if another replica's request, the first for a link, has not taken its room for too long."""
        left = self._left_to.get(link)
        return left is not None and best.replica != self._replica and now_us - left[1] > LINK_GRACE_US

    def _quoted(self, link: str, transfer: "_Transfer", now_us: int) -> Quote | None:
        kv_bytes, ready_bytes, overlapped_s, ready_s = transfer
        return self._fleet.links.quote(link, kv_bytes, overlapped_s, ready_s, now_us, ready_bytes)

    def went(self, request_id: str, verdict: OffloadVerdict, now_us: int) -> None:
        """Count a request that goes, and keep its verdict."""
        self.counts[verdict.reason] += 1
        if verdict.remote and verdict.above_cap:
            self.above_cap[verdict.link] += 1
        self.latest.append(PastVerdict(now_us, request_id, verdict))

    def _placed(
        self, view: RequestView, candidates: Candidates, slots: Slots, policy: Policy, bucket: int
    ) -> Placing:
        among = self._fleet.among(candidates, slots, bucket)
        return Placing(among, place(view, among, policy))


_CHOSEN_LOCAL = frozenset(
    (OffloadReason.BELOW_THRESHOLD, OffloadReason.SOONER_LOCAL, OffloadReason.REMOTE_BUSY)
)
"""Reasons for which a request stays although it could go to another site."""


def _offer(
    site: str,
    link: str,
    view: RequestView,
    candidates: Candidates,
    chosen: Chosen,
    line_of: Callable[[str, Chosen, int], Line],
) -> Offer:
    line, prefill_s = line_of(link, chosen, len(candidates)), chosen.service_s
    return Offer(
        site,
        link,
        view.prompt_tokens - chosen.safe_tokens,
        chosen.queue_s + line.ahead_s,
        prefill_s,
        chosen.estimated_ttft_s - chosen.queue_s - prefill_s - chosen.transfer_s,
        _others_s(candidates, chosen, line),
        candidates.backlog_s.min().item() + line.work_s,
    )


def _others_s(candidates: Candidates, chosen: Chosen, line: Line) -> float:
    """Seconds that others lose: requests decoding there, later arrivals, and each request waiting behind it.

    Of two workers of one side the policy counts only the part of the wait in which later arrivals stay behind
    (`policies.scoring.expected_cost`): the rest of the queue is the same for both. Between two sides it
    differs, since a request that is longer for a slower side holds up the line there for longer. So here all
    of the wait counts, κ·x·(V + A + x/2).

    While no request waits for a side, most later requests take another worker of it
    (`SlowColumns.delayed_ratio`): at 1.2 requests/s mean TTFT is 1.78 s with that factor and 1.91 s without,
    P99 6.9 and 12.5 s (`loadtest.plan.prfaas`, ours, 1,000 lognormal prompts, seed 1).
    """
    slow, prefill_s = candidates.slow, chosen.service_s
    congestion_per_s = slow.congestion_per_s.item(int(slow.slots.searchsorted(chosen.slot)))
    if line.work_s <= 0.0:
        congestion_per_s *= slow.delayed_ratio
    comes = congestion_per_s * (chosen.queue_s + line.ahead_s + prefill_s / 2.0)
    return chosen.stall_s + prefill_s * (comes + line.behind)


def _crossing(offer: Offer, decode_view: DecodeView, chosen: Chosen) -> Offer:
    """Add the KV that would cross the link: all but the decode side's cached part."""
    overlap_ratio = decode_view.overlap_ratio(chosen.slot)
    if not decode_view.kv.known:
        return msgspec.structs.replace(offer, overlap_ratio=overlap_ratio)
    transfer = _transfer(decode_view, chosen, decode_view.held_tokens(chosen.slot))
    return msgspec.structs.replace(
        offer, overlap_ratio=overlap_ratio, kv_bytes=transfer.kv_bytes, ready_bytes=transfer.ready_bytes
    )


class _Transfer(NamedTuple):
    """KV that a prefill worker would send.

    Attributes:
        ready_bytes: The part that leaves at once: cached there, and not held by the decode side.
        overlapped_s: Seconds of the prefill during which the rest is sent.
        ready_s: Seconds until that begins.
    """

    kv_bytes: float
    ready_bytes: float
    overlapped_s: float
    ready_s: float


def _transfer(decode_view: DecodeView, chosen: Chosen, held_tokens: float) -> _Transfer:
    kv, overlap_ratio = decode_view.kv, decode_view.overlap_ratio(chosen.slot)
    overlapped_s = overlap_ratio * chosen.service_s
    return _Transfer(
        kv.of(decode_view.request.prompt_tokens, held_tokens),
        max(chosen.safe_tokens - held_tokens, 0.0) * kv.kv_bytes_per_token if overlap_ratio else 0.0,
        overlapped_s,
        chosen.queue_s + chosen.service_s - overlapped_s,
    )
