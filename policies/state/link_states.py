"""Whether a link has bandwidth to spare, by the signals of PrfaaS (arXiv:2604.15039, 3.4.3), with hysteresis.

    ABUNDANT ── utilisation, loss or wait above ──> SCARCE
    SCARCE ──── all of them well below ───────────> ABUNDANT
    any ─────── half of its transfers failed ─────> DOWN ── a while later, nothing under way ──> PROBING
    PROBING ─── one transfer: arrived ──> ABUNDANT or SCARCE;  failed ──> DOWN

Utilisation is smoothed, since transfers come and go in tenths of a second. The paper publishes no levels: 0.7
and 0.5 are ours (theory E4.6). DOWN and PROBING follow from what is measured and reserved, so replicas agree
on them; between scarce and abundant they may differ for a moment.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp

from policies.declared import setting
from policies.state.links import Links

SMOOTHING_S = 2.0
"""Time constant of the utilisation: several transfers long, and short against a burst of minutes."""

UTILISATION_MAX = 2.0
"""A link that lost its capacity is no fuller than this, so that it need not recover from it for long."""

DOWN_LOSS_RATIO = 0.5
"""Share of failed transfers at which a link is down."""

PROBE_S = 5.0
"""So long after the last failure one transfer may try."""

CALM_RATIO = 0.5
"""Loss and wait are low again below this share of what was too much."""


class LinkState(StrEnum):
    """How a link is."""

    ABUNDANT = "abundant"
    SCARCE = "scarce"
    DOWN = "down"
    PROBING = "probing"


@dataclass(frozen=True)
class LinkStateRules:
    """When a link is in which state."""

    scarce_above: float = setting(
        0.7,
        "Utilisation of a link, as a share of what KV may take of it, above which bandwidth is scarce: then "
        "only the cache of the decode worker's site counts, and no cached prefix crosses. Below saturation, "
        "since a queue grows before a link is full.",
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
        "whatever its utilisation, in seconds; and by how much the queue of one site must be longer than the "
        "other's for seconds to overrule the threshold. The default is about what a prompt of 32K tokens "
        "takes to prefill on eight H200.",
        flag="offload-wait-secs-max",
        gt=0,
        live=True,
    )

    def __post_init__(self) -> None:
        if self.abundant_below >= self.scarce_above:
            raise ValueError("abundant_below must be below scarce_above")


@dataclass(slots=True)
class _Signals:
    """What is remembered of one link."""

    utilisation: float
    at_us: int
    scarce: bool = False


class LinkStates:
    """The states of all links, as one replica sees them.

    Args:
        links: What is reserved and measured.
        rules: See there.

    Attributes:
        rules: The same; may change.
    """

    def __init__(self, links: Links, rules: LinkStateRules = LinkStateRules()) -> None:
        self._links = links
        self.rules = rules
        self._signals: dict[str, _Signals] = {}

    def rehearsing(self) -> "LinkStates":
        """The same states now, which then change for themselves alone."""
        other = LinkStates(self._links, self.rules)
        other._signals = {link: replace(signals) for link, signals in self._signals.items()}
        return other

    def utilisation(self, link: str, now_us: int) -> float:
        """The smoothed utilisation of a link."""
        now = min(self._links.utilisation(link, now_us), UTILISATION_MAX)
        signals = self._signals.get(link)
        if signals is None:
            if link not in self._links.rules:
                return now
            signals = self._signals[link] = _Signals(now, now_us)
        elapsed_s = (now_us - signals.at_us) / 1e6
        if elapsed_s > 0:
            signals.utilisation += (1.0 - exp(-elapsed_s / SMOOTHING_S)) * (now - signals.utilisation)
            signals.at_us = now_us
        return signals.utilisation

    def state(self, link: str, wait_s: float, now_us: int) -> LinkState:
        """The state of a link.

        Args:
            link: Which.
            wait_s: What a request would wait for it, or for the prefill workers behind it.
            now_us: Log time.
        """
        links, rules = self._links, self.rules
        known, limits = links.measurement(link), links.rules.get(link)
        if limits is None:
            return LinkState.DOWN
        loss_ratio = 0.0
        if known is not None:
            loss_ratio = known.loss_ratio
            if loss_ratio >= DOWN_LOSS_RATIO:
                due = now_us - known.at_us >= PROBE_S * 1e6
                return LinkState.PROBING if due and not links.under_way(link) else LinkState.DOWN
        utilisation = self.utilisation(link, now_us)
        signals = self._signals[link]
        if (
            utilisation > rules.scarce_above
            or loss_ratio > limits.loss_ratio_max
            or wait_s > rules.wait_s_max
        ):
            signals.scarce = True
        elif (
            utilisation < rules.abundant_below
            and loss_ratio <= CALM_RATIO * limits.loss_ratio_max
            and wait_s <= CALM_RATIO * rules.wait_s_max
        ):
            signals.scarce = False
        return LinkState.SCARCE if signals.scarce else LinkState.ABUNDANT
