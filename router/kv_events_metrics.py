"""What comes of engines' KV events, and how well they are followed: a part of `router.metrics`.

Read when somebody scrapes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from router import metric_families as families
from router.metric_families import Family
from router.tallies import Total


@dataclass(frozen=True, slots=True)
class FollowedSample:
    """One worker that this replica follows.

    Attributes:
        worker_id: Its id.
        state: How far following it has come.
        blocks: KV blocks known from its events.
        lag_s: How old its last batch was when it was read; None if none came.
    """

    worker_id: str
    state: str
    blocks: int
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class KvEventsSample:
    """What is known at the moment of a scrape.

    Attributes:
        counts: What came and happened since the start, by name (`router.fleet.kv_events`).
        followed: The workers.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    followed: tuple[FollowedSample, ...] = ()


class KvEventsMetrics:
    """Tells of KV events what is true at the scrape.

    Attributes:
        sample: Asked at each scrape.
    """

    def __init__(self, counter: Callable[[Family], Counter], collected: Callable[[Collector], None]) -> None:
        """Register the families.

        Args:
            counter: Makes one that follows totals.
            collected: Registers what is read at a scrape.
        """
        self.sample: Callable[[], KvEventsSample] = KvEventsSample
        received, invalid = counter(families.KV_EVENTS), counter(families.KV_EVENTS_INVALID)
        losses, replays = counter(families.KV_EVENT_LOSSES), counter(families.KV_EVENT_REPLAYS)
        self._totals = {
            "batches": Total(counter(families.KV_EVENT_BATCHES)),
            **{kind: Total(received.labels(kind)) for kind in ("stored", "removed", "cleared", "unknown")},
            "damaged": Total(invalid.labels("batch")),
            "invalid": Total(invalid.labels("message")),
            "gaps": Total(counter(families.KV_EVENT_GAPS)),
            "answered": Total(replays.labels("answered")),
            "unanswered": Total(replays.labels("unanswered")),
            **{reason: Total(losses.labels(reason)) for reason in ("restart", "gap", "again")},
            "forgets": Total(counter(families.KV_EVENT_FORGETS)),
            "corrections": Total(counter(families.KV_EVENT_CORRECTIONS)),
        }
        collected(_Followed(self))

    def report(self) -> None:
        """Set what is a total since the start of this process."""
        counts = self.sample().counts
        for name, total in self._totals.items():
            total.follow(counts.get(name, 0))


class _Followed(Collector):
    def __init__(self, metrics: KvEventsMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family after the other."""
        blocks, lag, state = map(
            _family, (families.KV_EVENT_BLOCKS, families.KV_EVENT_LAG, families.KV_EVENT_STATE)
        )
        for worker in self._metrics.sample().followed:
            blocks.add_metric([worker.worker_id], worker.blocks)
            state.add_metric([worker.worker_id, worker.state], 1)
            if worker.lag_s is not None:
                lag.add_metric([worker.worker_id], worker.lag_s)
        yield from (blocks, lag, state)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: a registry that asks at registration would ask before there is anything."""
        return ()


def _family(family: Family) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.exposed_name, family.about, labels=family.labels)
