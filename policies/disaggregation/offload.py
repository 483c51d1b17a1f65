"""Rule for the site of a prefill: locally, or in another site, from which its KV crosses a link.

*Local* means that the KV crosses no link. **Seconds** decide: on each side the wait of the request, with that
side's cache, plus what others lose by it (theory E1: prices on stages; E2):

    local    V + x + κ·x·(V + x/2)
    remote   the same there + link + ρ/(1-ρ)·(wait + w/2)      w: seconds of the whole link that it takes

with ρ the smoothed utilisation, and the wait for room on the link as planned (`Links.quote`). Remote must be
sooner by a margin, since predictions err and links fail. This holds a threshold that moves: long prompts gain
most by faster workers, so as their queue grows, short ones stay first.

**The slow loop's threshold t** on *uncached* tokens (PrfaaS, arXiv:2604.15039, 3.4.3) rations a scarce link:
a prompt with no more than t tokens to prefill locally stays, since long prefills gain more for each byte.
While the link has room, t keeps no request (decision 0047).

**A threshold set by hand** is the rule of the paper:

    link scarce     the local cache alone counts:      l - l_local <= t ? local : remote
    link abundant   the best cache anywhere counts:    l - max(l_local, l_remote) <= t ? local : remote

The paper moves the longer prefix here in the second case. Engines can do that only through a pool that both
sites share (`policies.fleet.cache_pools`), and what a pool holds is part of l_local already: SGLang's
bootstrap and vLLM's connectors hand over whole requests, from prefill to decode. So seconds decide where only
the remote prefix is long, and when a queue surges on one side.

Nothing crosses a link that is down, and no KV of unknown size. Transfers are paced: one that does not fit now
waits in the gateway if that is still sooner, else the prompt is prefilled locally.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

import msgspec

from policies.declared import setting
from policies.disaggregation.link_states import LinkSignals, LinkState, LinkStateRules, LinkStates
from policies.state.links import Links, Quote

UTILISATION_MAX = 0.95
"""A fuller link costs others no more (as in `policies.fleet.columns`): ρ/(1-ρ) <= 19."""


class OffloadReason(StrEnum):
    """Reason for the site of a prefill."""

    BELOW_THRESHOLD = "below_threshold"
    ABOVE_THRESHOLD = "above_threshold"
    CACHED_THERE = "cached_there"
    SOONER_LOCAL = "sooner_local"
    SOONER_REMOTE = "sooner_remote"
    LOCAL_BUSY = "local_busy"
    REMOTE_BUSY = "remote_busy"
    LINK_FULL = "link_full"
    LINK_DOWN = "link_down"
    PROBE = "probe"
    UNKNOWN_KV = "unknown_kv"
    FAILED_REMOTE = "failed_remote"
    NO_LOCAL = "no_local"


MARGIN_RATIO, MARGIN_S = 0.1, 0.02
"""Margin by which remote must be cheaper: the greater of a share of the local price, and seconds."""

CALM_S = 0.5
"""A surge ends when the queue is less than this longer than that of the other side."""


@dataclass(frozen=True)
class RemoteRules:
    """Choice of prompts that are prefilled in another site.

    Attributes:
        surges: A queue surges when it is ``wait_s_max`` longer than that of the other side.
        helps: An idle worker may take a request that waits for the other side, if that is sooner.
    """

    disable_remote_prefill: bool = setting(
        False,  # noqa: FBT003 - a default
        "Never prefill in another site. The default follows fleet.links: without links there is nothing to "
        "decide.",
        live=True,
    )
    threshold_tokens: int = setting(
        0,
        "Uncached tokens of a prompt above which it is prefilled in another site. 0: seconds decide, and the "
        "threshold that the slow loop finds (see roles.interval_s) rations what is scarce there.",
        flag="offload-threshold-tokens",
        ge=0,
        live=True,
    )
    surges: bool = True
    helps: bool = True


@dataclass(frozen=True)
class OffloadRules(LinkStateRules, RemoteRules):
    """Settings of the rule."""


class Offer(msgspec.Struct, frozen=True, gc=False):
    """Offer of one side for a request: its cheapest worker, and its shortest queue.

    Attributes:
        link: Link that the KV would cross; empty if none.
        uncached_tokens: Tokens that it would prefill.
        ready_s: V': seconds until it could begin.
        service_s: s.
        other_s: Rest of the time to the first token, but for the link.
        others_s: Seconds that others lose.
        backlog_s: Shortest queue of the side, seconds.
        overlap_ratio: Share of the prefill during which its KV is sent.
        kv_bytes: Bytes that would cross; None if unknown.
        ready_bytes: The part of them that is cached there, and leaves at once.
    """

    site: str
    link: str
    uncached_tokens: float
    ready_s: float
    service_s: float
    other_s: float = 0.0
    others_s: float = 0.0
    backlog_s: float = 0.0
    overlap_ratio: float = 1.0
    kv_bytes: float | None = None
    ready_bytes: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Time to the first token, but for the link."""
        return self.ready_s + self.service_s + self.other_s


class OffloadVerdict(msgspec.Struct, frozen=True, gc=False):
    """A decision that explains itself. Numbers are -1 where a local worker or the KV size is missing.

    Attributes:
        threshold_tokens: t; 0 without one.
        uncached_local: Tokens to prefill locally.
        kv_bytes: Bytes that would cross.
        link_s: Seconds that the link would add to the time to the first token: wait, exposed transfer, round
            trip.
        local_s: Predicted time to the first token, locally.
        utilisation: Smoothed utilisation of the link.
        local_others_s: Seconds that others would lose locally.
        remote_others_s: Seconds that others would lose in the other site and on the link.
        wait_s: The part of ``link_s`` that is the wait for room.
        above_cap: True if more of its KV would leave per second than the cap allows: it goes alone.
    """

    remote: bool
    site: str
    reason: OffloadReason
    threshold_tokens: int
    uncached_local: int
    uncached_remote: int
    kv_bytes: int
    link_s: float
    local_s: float
    remote_s: float
    utilisation: float
    state: LinkState
    link: str
    local_others_s: float = 0.0
    remote_others_s: float = 0.0
    wait_s: float = 0.0
    above_cap: bool = False

    @property
    def way(self) -> str:
        """Link that its KV crosses; empty for none."""
        return self.link if self.remote else ""

    @property
    def judged_tokens(self) -> int:
        """Uncached tokens that t is compared with: over an abundant link, behind the best cache anywhere."""
        if self.state is LinkState.ABUNDANT:
            return min(self.uncached_local, self.uncached_remote)
        return self.uncached_local


class RemoteSide(msgspec.Struct, frozen=True, gc=False):
    """A remote offer, priced with its link. ``quote`` is None if the link is not configured."""

    offer: Offer
    quote: Quote | None
    signals: LinkSignals
    link_s: float
    price_s: float
    others_s: float


class Offload:
    """The rule, the states of links and which queues surge.

    `sides` and `judge` are queries. `observe` is the step from which the next request is judged.

    Args:
        links: Reservations and measurements.
        rules: The settings; others take their place, here and in `states`, when settings change.
    """

    def __init__(self, links: Links, rules: OffloadRules = OffloadRules()) -> None:
        self.rules = rules
        self.states = LinkStates(links, rules)
        self._links = links
        self._surges: dict[str, int] = {}
        """By link: 1 while the local queue surges, -1 while the remote one does."""

    def rehearsing(self) -> "Offload":
        """Return a copy, whose observations change the copy alone."""
        other = Offload(self._links, self.rules)
        other.states, other._surges = self.states.rehearsing(), dict(self._surges)
        return other

    def sides(self, remotes: Sequence[Offer], now_us: int) -> list[RemoteSide]:
        """Price the offers of other sites with their links, at this log time."""
        return [self._side(offer, now_us) for offer in remotes]

    def judge(
        self,
        local: Offer | None,
        sides: Sequence[RemoteSide],
        threshold_tokens: float | None,
        *,
        fixed: bool = False,
        failed: bool = False,
    ) -> OffloadVerdict:
        """Decide where a request is prefilled.

        ``local`` is None if no worker prefills where no link is crossed; ``sides`` is not empty. A t that is
        ``fixed`` was set by hand and decides; else it rations a scarce link. ``failed`` says that a prefill
        in another site has failed the request already.
        """
        side = min(sides, key=_rank)
        offer, state, quote = side.offer, side.signals.state, side.quote
        if local is None:
            weighed = offer.kv_bytes is not None
            reason = OffloadReason.NO_LOCAL if weighed else OffloadReason.UNKNOWN_KV
            return _verdict(local, side, threshold_tokens, reason, remote=weighed)
        surge = self._surge(local, offer)
        if offer.kv_bytes is None:
            remote, reason = False, OffloadReason.UNKNOWN_KV
        elif state is LinkState.DOWN or quote is None:
            remote, reason = False, OffloadReason.LINK_DOWN
        elif failed:
            remote, reason = False, OffloadReason.FAILED_REMOTE
        else:
            if fixed and threshold_tokens is not None:
                remote, reason = self._by_threshold(local, side, threshold_tokens, surge)
            else:
                remote, reason = self._by_seconds(local, side, threshold_tokens, surge)
            if remote and state is LinkState.PROBING:
                reason = OffloadReason.PROBE
            if remote and not self._gets_through(local, side, quote):
                remote, reason = False, OffloadReason.LINK_FULL
        return _verdict(local, side, threshold_tokens, reason, remote=remote)

    def observe(self, local: Offer | None, sides: Sequence[RemoteSide], verdict: OffloadVerdict) -> None:
        """Go on from what a verdict was judged by: the signals of all links, the surge at the verdict's."""
        for side in sides:
            offer = side.offer
            self.states.observe(offer.link, side.signals)
            if local is not None and offer.link == verdict.link and offer.link in self._links.rules:
                self._surges[offer.link] = self._surge(local, offer)

    def _by_seconds(
        self, local: Offer, side: RemoteSide, threshold_tokens: float | None, surge: int
    ) -> tuple[bool, OffloadReason]:
        """Choice by seconds, before the link is asked; a scarce link is for long prompts."""
        if not self._sooner(local, side):
            return False, OffloadReason.SOONER_LOCAL
        short = threshold_tokens is not None and local.uncached_tokens <= threshold_tokens
        queue_s = side.offer.backlog_s
        scarce = side.signals.state is LinkState.SCARCE or queue_s > max(CALM_S, local.backlog_s)
        if short and scarce and surge <= 0:
            return False, OffloadReason.BELOW_THRESHOLD
        return True, OffloadReason.SOONER_REMOTE

    def _by_threshold(
        self, local: Offer, side: RemoteSide, threshold_tokens: float, surge: int
    ) -> tuple[bool, OffloadReason]:
        offer = side.offer
        sooner = self._sooner(local, side)
        if local.uncached_tokens <= threshold_tokens:
            if surge > 0 and sooner:
                return True, OffloadReason.LOCAL_BUSY
            return False, OffloadReason.BELOW_THRESHOLD
        if offer.uncached_tokens <= threshold_tokens and side.signals.state is LinkState.ABUNDANT:
            return sooner, OffloadReason.CACHED_THERE if sooner else OffloadReason.SOONER_LOCAL
        if surge < 0 and not sooner:
            return False, OffloadReason.REMOTE_BUSY
        return True, OffloadReason.ABOVE_THRESHOLD

    def _sooner(self, local: Offer, side: RemoteSide) -> bool:
        local_s = local.ttft_s + local.others_s
        return side.price_s + max(MARGIN_S, MARGIN_RATIO * local_s) < local_s

    def _gets_through(self, local: Offer, side: RemoteSide, quote: Quote) -> bool:
        """True if the link takes it now and fast, or at least sooner than a local prefill."""
        wait_s_max = self.rules.wait_s_max
        if quote.fits and side.link_s <= wait_s_max:
            return True
        return quote.wait_s <= wait_s_max and self._sooner(local, side)

    def _surge(self, local: Offer, offer: Offer) -> int:
        """1 if the local queue surges against that of an offer, -1 if the offer's does, else 0."""
        rules, surge = self.rules, self._surges.get(offer.link, 0)
        longer_s = local.backlog_s - offer.backlog_s
        if rules.surges and abs(longer_s) > rules.wait_s_max:
            return 1 if longer_s > 0 else -1
        return 0 if longer_s * surge < CALM_S else surge

    def _side(self, offer: Offer, now_us: int) -> RemoteSide:
        links, link = self._links, offer.link
        overlapped_s = offer.overlap_ratio * offer.service_s
        ready_s = offer.ready_s + offer.service_s - overlapped_s
        quote = links.quote(link, offer.kv_bytes or 0.0, overlapped_s, ready_s, now_us, offer.ready_bytes)
        wait_s = quote.wait_s if quote is not None else 0.0
        signals = self.states.signals(link, max(wait_s, offer.backlog_s), now_us)
        if quote is None:
            return RemoteSide(offer, None, signals, 0.0, inf, 0.0)
        link_s = wait_s + quote.exposed_s + links.rtt_s(link)
        others_s = offer.others_s
        if offer.kv_bytes:
            full = min(signals.utilisation, UTILISATION_MAX)
            alone_s = offer.kv_bytes / links.cap_bytes_per_s(link, now_us)
            others_s += full / (1.0 - full) * (wait_s + alone_s / 2.0)
        return RemoteSide(offer, quote, signals, link_s, offer.ttft_s + link_s + others_s, others_s)


def _rank(side: RemoteSide) -> tuple[bool, bool, float, str]:
    return side.offer.kv_bytes is None, side.signals.state is LinkState.DOWN, side.price_s, side.offer.link


def _verdict(
    local: Offer | None,
    side: RemoteSide,
    threshold_tokens: float | None,
    reason: OffloadReason,
    *,
    remote: bool,
) -> OffloadVerdict:
    offer, quote = side.offer, side.quote
    return OffloadVerdict(
        remote,
        offer.site if remote or local is None else local.site,
        reason,
        round(threshold_tokens or 0.0),
        -1 if local is None else round(local.uncached_tokens),
        round(offer.uncached_tokens),
        -1 if offer.kv_bytes is None else round(offer.kv_bytes),
        side.link_s,
        -1.0 if local is None else local.ttft_s,
        offer.ttft_s + side.link_s,
        side.signals.utilisation,
        side.signals.state,
        offer.link,
        0.0 if local is None else local.others_s,
        side.others_s,
        0.0 if quote is None else quote.wait_s,
        quote is not None and quote.above_cap,
    )
