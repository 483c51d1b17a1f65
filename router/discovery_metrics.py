"""What discovery sees of pods, and how well it can look: a part of `router.metrics`.

Read when somebody scrapes. Without discovery there is nothing to tell.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from router import metric_families as families
from router.metric_families import Family
from router.tallies import Total


@dataclass(frozen=True, slots=True)
class DiscoverySample:
    """What discovery knows at the moment of a scrape.

    Attributes:
        pods: How many pods are used, and how many are not, by reason.
        list_age_s: Age of the oldest of the newest lists; None while one never came.
        failures: How often the API server could not be asked, by kind, since the start.
        restarts: How often a watch ended otherwise than by its time, since the start.
        missed: How many changes a list found that the watch did not tell, since the start.
    """

    pods: Mapping[str, int]
    list_age_s: float | None
    failures: Mapping[str, int]
    restarts: int
    missed: int


class DiscoveryMetrics:
    """Tells of pods what is true at the scrape.

    Attributes:
        sample: Asked at each scrape; None without discovery.
    """

    def __init__(self, counter: Callable[[Family], Counter], collected: Callable[[Collector], None]) -> None:
        """Register the families.

        Args:
            counter: Makes one that follows totals.
            collected: Registers what is read at a scrape.
        """
        self.sample: Callable[[], DiscoverySample | None] = lambda: None
        self._failures = counter(families.DISCOVERY_FAILURES)
        self._failed: dict[str, Total] = {}
        self._restarts = Total(counter(families.DISCOVERY_RESTARTS))
        self._missed = Total(counter(families.DISCOVERY_MISSED))
        collected(_Pods(self))

    def report(self) -> None:
        """Set what is a total since the start of this process."""
        sample = self.sample()
        if sample is None:
            return
        self._restarts.follow(sample.restarts)
        self._missed.follow(sample.missed)
        for trouble, total in sample.failures.items():
            if trouble not in self._failed:
                self._failed[trouble] = Total(self._failures.labels(trouble))
            self._failed[trouble].follow(total)


class _Pods(Collector):
    def __init__(self, metrics: DiscoveryMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family after the other."""
        sample = self._metrics.sample()
        pods, age = map(_family, (families.DISCOVERY_PODS, families.DISCOVERY_LIST_AGE))
        if sample is not None:
            for state, count in sorted(sample.pods.items()):
                pods.add_metric([state], count)
            if sample.list_age_s is not None:
                age.add_metric([], sample.list_age_s)
        yield from (pods, age)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: a registry that asks at registration would ask for pods that are not there yet."""
        return ()


def _family(family: Family) -> GaugeMetricFamily:
    return GaugeMetricFamily(family.exposed_name, family.about, labels=family.labels)
