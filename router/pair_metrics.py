"""What happens to requests that a prefill and a decode worker share, and to the links between sites.

Part of `router.metrics`: events are counted here when the gateway tells of them, links and the plan of the
slow loop are read when somebody scrapes. A fleet of plain workers tells of nothing here.

Attempts are counted: a request whose first attempt fails and that is dispatched again counts twice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies import LinkState, OffloadReason
from router import metric_families as families
from router.metric_families import Family
from router.tallies import Count, Sums, Total


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


@dataclass(frozen=True, slots=True)
class LinkSample:
    """One link at the moment of a scrape.

    Attributes:
        link: Its name.
        capacity_bytes_per_s: What it can carry, as configured or, if that is less, as measured.
        cap_bytes_per_s: What of it may be reserved.
        reserved_bytes_per_s: What is reserved now, by all replicas.
        state: Its `policies.LinkState`.
        goodput_bytes_per_s: What was measured last; None if nothing was.
        rtt_s: Round trip, measured or configured.
        loss_ratio: Share of the latest transfers that failed.
    """

    link: str
    capacity_bytes_per_s: float
    cap_bytes_per_s: float
    reserved_bytes_per_s: float
    state: str
    goodput_bytes_per_s: float | None
    rtt_s: float
    loss_ratio: float


@dataclass(frozen=True, slots=True)
class PlanSample:
    """What the slow loop says at the moment of a scrape.

    Attributes:
        threshold_tokens: Uncached tokens above which prefill is remote; None while nobody has said.
        roles: How many workers should have each role.
        gain_ratio: By how much more requests that would serve, as a share.
    """

    threshold_tokens: float | None
    roles: dict[str, int]
    gain_ratio: float


class PairMetrics:
    """Counters of what two workers do for one request.

    Attributes:
        links: Asked for the links at each scrape.
        plan: Asked for the plan at each scrape; None without one.
    """

    def __init__(
        self,
        count: Callable[[Family], Count],
        sums: Callable[..., Sums],
        counter: Callable[[Family], Counter],
        collected: Callable[[Collector], None],
    ) -> None:
        """Register the families.

        Args:
            count: Makes a counter by labels.
            sums: Makes a counter of amounts with one label.
            counter: Makes one that follows totals.
            collected: Registers what is read at a scrape.
        """
        self.links: Callable[[], Iterable[LinkSample]] = tuple
        self.plan: Callable[[], PlanSample | None] = lambda: None
        self._handovers = count(families.HANDOVERS)
        self._leg_failures = count(families.LEG_FAILURES)
        self._events = counter(families.HANDOVER_EVENTS)
        self._offload = counter(families.OFFLOAD_DECISIONS)
        self._totals: dict[tuple[str, ...], Total] = {}
        self._whole = count(families.WHOLE_AT_DECODE)
        self._role_changes = count(families.ROLE_CHANGES)
        self._kv_bytes = sums(families.LINK_KV_BYTES)
        collected(_Links(self))

    def ended(self, protocol: str, end: PairEnd) -> None:
        """An attempt with two workers ended."""
        self._handovers.add((protocol, end.value))

    def leg_failed(self, protocol: str, leg: str, kind: str) -> None:
        """One of its legs failed first, with the code of an error."""
        self._leg_failures.add((protocol, leg, kind))

    def whole_at_decode(self, worker_id: str) -> None:
        """A decode worker was given a whole request, since it would answer sooner."""
        self._whole.add((worker_id,))

    def role_changed(self, role: str) -> None:
        """The slow loop gave a worker another role."""
        self._role_changes.add((role,))

    def shipped(self, link: str, kv_bytes: float) -> None:
        """KV crossed a link."""
        self._kv_bytes.add((link, kv_bytes))

    # What hooks tell: totals since the start of this process.

    def handover_events(self, protocol: str, totals: Mapping[str, int]) -> None:
        """Set how often what happened in a hand-over protocol."""
        for event, total in totals.items():
            self._follow(self._events, (protocol, event), total)

    def offload_decided(self, totals: Mapping[OffloadReason, int]) -> None:
        """Set for how many requests it was decided, and why, in which site they are prefilled."""
        for reason, total in totals.items():
            self._follow(self._offload, (reason.value,), total)

    def _follow(self, counter: Counter, labels: tuple[str, ...], total: int) -> None:
        known = self._totals.get(labels)
        if known is None:
            known = self._totals[labels] = Total(counter.labels(*labels))
        known.follow(total)


_LINK_VALUES: tuple[tuple[Family, Callable[[LinkSample], float | None]], ...] = (
    (families.LINK_CAPACITY, lambda sample: sample.capacity_bytes_per_s),
    (families.LINK_RESERVED, lambda sample: sample.reserved_bytes_per_s),
    (
        families.LINK_UTILISATION,
        lambda sample: (
            sample.reserved_bytes_per_s / sample.cap_bytes_per_s if sample.cap_bytes_per_s else None
        ),
    ),
    (families.LINK_GOODPUT, lambda sample: sample.goodput_bytes_per_s),
    (families.LINK_RTT, lambda sample: sample.rtt_s),
    (families.LINK_LOSS, lambda sample: sample.loss_ratio),
)


class _Links(Collector):
    """Tells of links and the plan what is true at the scrape."""

    def __init__(self, metrics: PairMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family after the other."""
        links = list(self._metrics.links())
        states = _family(families.LINK_STATE)
        for sample in links:
            for state in LinkState:
                states.add_metric([sample.link, state.value], float(sample.state == state.value))
        yield states
        for family, value in _LINK_VALUES:
            gauge = _family(family)
            for sample in links:
                known = value(sample)
                if known is not None:
                    gauge.add_metric([sample.link], known)
            yield gauge
        plan = self._metrics.plan()
        threshold, wanted, gain = map(
            _family, (families.OFFLOAD_THRESHOLD, families.ROLE_WORKERS_BEST, families.ROLE_GAIN)
        )
        if plan is not None:
            if plan.threshold_tokens is not None:
                threshold.add_metric([], plan.threshold_tokens)
            for role, workers in plan.roles.items():
                wanted.add_metric([role], workers)
            gain.add_metric([], plan.gain_ratio)
        yield from (threshold, wanted, gain)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: a registry that asks at registration would ask for links that are not there yet."""
        return ()


def _family(family: Family) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.exposed_name, family.about, labels=family.labels)
