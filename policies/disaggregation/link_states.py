"""State of a link's bandwidth, by the signals of PrfaaS (arXiv:2604.15039, 3.4.3), with hysteresis.

    ABUNDANT ── utilisation, loss or wait above ──> SCARCE
    SCARCE ──── all of them well below ───────────> ABUNDANT
    any ─────── half of its transfers failed ─────> DOWN ── a while later, nothing under way ──> PROBING
    PROBING ─── one transfer: arrived ──> ABUNDANT or SCARCE;  failed ──> DOWN

Utilisation is smoothed, since transfers come and go in tenths of a second. The paper publishes no levels: 0.7
and 0.5 are ours (theory E4.6). DOWN and PROBING follow from what is measured and reserved, so replicas agree
on them; between scarce and abundant they may differ for a moment.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import exp

import msgspec

from policies.declared import setting
from policies.state.links import Links

SMOOTHING_S = 2.0
"""Time constant of the utilisation: several transfers long, and short against a burst of minutes."""

UTILISATION_MAX = 2.0
"""A link that lost its capacity is no fuller than this, so that it need not recover from it for long."""

DOWN_LOSS_RATIO = 0.5
"""Share of failed transfers at which a link is down."""

PROBE_S = 5.0
"""Seconds after the last failure until one transfer may try."""

CALM_RATIO = 0.5
"""Share of the upper bounds below which loss and wait are low again."""


class LinkState(StrEnum):
    """State of a link."""

    ABUNDANT = "abundant"
    SCARCE = "scarce"
    DOWN = "down"
    PROBING = "probing"


@dataclass(frozen=True)
class LinkStateRules:
    """Bounds between the states of a link."""

    scarce_above: float = setting(
        0.7,
        "Utilisation of a link, as a share of the capacity that KV may take, above which bandwidth is "
        "scarce: then only the cache of the decode worker's site counts, and no cached prefix crosses. Below "
        "saturation, since a queue grows before a link is full.",
        flag="offload-scarce-above",
        gt=0,
        le=1,
        live=True,
    )
    abundant_below: float = setting(
        0.5,
        "Utilisation below which bandwidth is abundant again. Far enough below offload.scarce_above that one "
        "long prompt does not switch back and forth.",
        flag="offload-abundant-below",
        ge=0,
        le=1,
        live=True,
    )
    wait_s_max: float = setting(
        2.0,
        "Wait for a link, or for prefill workers of the other site, above which bandwidth counts as scarce "
        "at any utilisation, in seconds; also the lead of one site's queue over the other's above which "
        "seconds overrule the threshold. The default is about the time to prefill a prompt of 32K tokens on "
        "eight H200.",
        flag="offload-wait-secs-max",
        gt=0,
        live=True,
    )

    def __post_init__(self) -> None:
        if self.abundant_below >= self.scarce_above:
            raise ValueError("abundant_below must be below scarce_above")


class LinkSignals(msgspec.Struct, frozen=True, gc=False):
    """A link at one moment: its state, its smoothed utilisation, and whether hysteresis holds it scarce."""

    state: LinkState
    utilisation: float
    at_us: int
    scarce: bool = False


class LinkStates:
    """The states of all links, as one replica observes them.

    `signals` is a query. `observe` is the step from which the next query goes on: the utilisation is smoothed
    and hysteresis holds from one observation to the next.

    Args:
        links: Reservations and measurements.
        rules: Levels of the states; others take their place when settings change.
    """

    def __init__(self, links: Links, rules: LinkStateRules = LinkStateRules()) -> None:
        self._links = links
        self.rules = rules
        self._observed: dict[str, LinkSignals] = {}

    def rehearsing(self) -> "LinkStates":
        """Return a copy, whose observations change the copy alone."""
        other = LinkStates(self._links, self.rules)
        other._observed = dict(self._observed)
        return other

    def signals(self, link: str, wait_s: float, now_us: int) -> LinkSignals:
        """Return the signals of a link now; a link that is not configured is down.

        Args:
            link: Name of the link.
            wait_s: Wait of a request for the link, or for the prefill workers behind it, in seconds.
            now_us: Log time.
        """
        links, rules = self._links, self.rules
        now = min(links.utilisation(link, now_us), UTILISATION_MAX)
        limits, measured = links.rules.get(link), links.measurement(link)
        if limits is None:
            return LinkSignals(LinkState.DOWN, now, now_us)
        utilisation, at_us, scarce = now, now_us, False
        last = self._observed.get(link)
        if last is not None:
            utilisation, at_us, scarce = last.utilisation, last.at_us, last.scarce
        elapsed_s = (now_us - at_us) / 1e6
        if elapsed_s > 0:
            utilisation += (1.0 - exp(-elapsed_s / SMOOTHING_S)) * (now - utilisation)
            at_us = now_us
        loss_ratio = measured.loss_ratio if measured is not None else 0.0
        if measured is not None and loss_ratio >= DOWN_LOSS_RATIO:
            due = now_us - measured.at_us >= PROBE_S * 1e6
            state = LinkState.PROBING if due and not links.under_way(link) else LinkState.DOWN
            return LinkSignals(state, utilisation, at_us, scarce)
        if (
            utilisation > rules.scarce_above
            or loss_ratio > limits.loss_ratio_max
            or wait_s > rules.wait_s_max
        ):
            scarce = True
        elif (
            utilisation < rules.abundant_below
            and loss_ratio <= CALM_RATIO * limits.loss_ratio_max
            and wait_s <= CALM_RATIO * rules.wait_s_max
        ):
            scarce = False
        return LinkSignals(LinkState.SCARCE if scarce else LinkState.ABUNDANT, utilisation, at_us, scarce)

    def observe(self, link: str, signals: LinkSignals) -> None:
        """Go on from these signals of a link; those of a link that is not configured are not kept."""
        if link in self._links.rules:
            self._observed[link] = signals
