"""Slowdown of single workers: how much longer each takes to prefill than its worker class.

A class has one price (`policies.estimates.costs`). A worker whose GPUs are throttled or whose host is shared
takes longer than that, so it gets more than it can do.

    logarithm of observed over predicted time, a mean for each worker of the class

        w1 w2 w3                      w4
    ────●──●──●───────────────────────●──>      slowdown of w4: its distance from the median

The median is what most workers of the class take, so an error of the predictions that all share cancels, and
a class with one worker has no slowdown. Predictions are those of one fixed model, the *reference*: what was
observed before and after the class learned would not compare. When the class has moved away from it
(`REFERENCE_MAX`), all begins again.

A replica says a slowdown only if the one in force contradicts its own observations, so replicas that see the
same worker do not take turns (decision 0063).
"""

from math import exp, log, sqrt
from statistics import median

from policies.estimates.costs import ServiceModel
from radix import WORKERS_MAX

SLOWDOWN_MAX = 4.0
"""Bound of a slowdown, and 1/4 of its inverse: a worker further off is another class, or broken."""

PREFILLS_MIN = 32
"""Prefills of a worker before anything new is said of it."""

PEER_MIN = 8
"""Prefills of a worker before it counts in the median, and before its slowdown is said again."""

MEMORY = 128
"""Prefills that the mean of a worker remembers: at 1 a second it follows a change within two minutes."""

MEMORY_US = 600_000_000
"""Time constant with which old prefills lose weight, log time."""

STEP_MAX = log(2.0)
"""An observation further than a factor of two from the mean counts as just this far (Huber's estimator): a
prefill that waited unseen takes many times as long, and says nothing of the worker."""

CLEAR = log(1.1)
"""A slowdown counts if it is certainly more than this: equal workers differ by 1 or 2 % (decision 0063)."""

CERTAIN = 4.0
"""Standard errors that count as certain: wrong once in 15,000, since each of many workers is judged often."""

CHANGE_MIN = 0.05
"""Relative change of a slowdown that is worth telling the other replicas."""

REFERENCE_MAX = log(1.5)
"""Greatest difference between the prices of the class and of the reference."""

MEDIAN_AGE_US = 1_000_000
"""Age at which the median of the workers is computed again."""

SAID_US = 10_000_000
"""Shortest time between two words on one worker, of all replicas."""

RENEWED_US, KEPT_US = 300_000_000, 900_000_000
"""Age at which a slowdown is said again by a replica that still observes it, and at which it ends.

A slow worker gets fewer requests or none, so its recovery would never be observed.
"""


class _Prefills:
    """Logarithms of observed over predicted time of one worker: mean, mean square deviation and weight."""

    __slots__ = ("at_us", "mean", "spread", "weight")

    def __init__(self, at_us: int) -> None:
        self.at_us = at_us
        self.weight = self.mean = self.spread = 0.0

    def observe(self, ratio_log: float, now_us: int) -> None:
        self.weight = self.weight_at(now_us) + 1.0
        self.at_us = max(self.at_us, now_us)
        step = min(max(ratio_log - self.mean, -STEP_MAX), STEP_MAX)
        self.mean += step / self.weight
        self.spread += (step * step - self.spread) / self.weight

    def weight_at(self, now_us: int) -> float:
        return min(self.weight, MEMORY - 1.0) * exp(-max(now_us - self.at_us, 0) / MEMORY_US)


class Slowdowns:
    """Observations of one replica on the workers of one class."""

    def __init__(self) -> None:
        self._reference: ServiceModel | None = None
        self._workers: dict[str, _Prefills] = {}
        self._median = 0.0
        self._median_us = -MEDIAN_AGE_US

    def observe(
        self,
        worker: str,
        prefill: tuple[float, float, float],
        model: ServiceModel,
        now_us: int,
        since_us: int,
    ) -> None:
        """Learn from one prefill that waited for nothing: uncached tokens, cached tokens, seconds.

        ``model`` prices the class now; nothing that was observed of the worker before ``since_us`` counts.
        """
        uncached_tokens, cached_tokens, seconds = prefill
        if not (uncached_tokens > 0 and cached_tokens >= 0 and 0 < seconds < 1e9):
            return
        reference, priced_s = self._reference or model, model.service_s(uncached_tokens, cached_tokens)
        expected_s = reference.service_s(uncached_tokens, cached_tokens)
        if abs(log(priced_s / expected_s)) > REFERENCE_MAX:
            reference, expected_s, self._median_us = model, priced_s, -MEDIAN_AGE_US
            self._workers.clear()
        self._reference = reference
        prefills = self._workers.get(worker)
        if prefills is None or prefills.at_us < since_us:
            if len(self._workers) >= WORKERS_MAX:
                self._workers.clear()
            prefills = self._workers[worker] = _Prefills(now_us)
        prefills.observe(log(seconds / expected_s), now_us)

    def word(self, worker: str, known: float, now_us: int, *, renews: bool) -> float | None:
        """Return the slowdown to say of a worker; None if the one in force (``known``) fits.

        If it ``renews``, one that is not 1 is said again.
        """
        prefills = self._workers.get(worker)
        weight = 0.0 if prefills is None else prefills.weight_at(now_us)
        if prefills is None or weight < PEER_MIN:
            return None
        distance = prefills.mean - self._median_at(now_us)
        doubt = CERTAIN * sqrt(prefills.spread / weight)
        found = min(max(exp(distance), 1.0 / SLOWDOWN_MAX), SLOWDOWN_MAX)
        if known != 1.0 and (abs(log(known) - distance) <= doubt or abs(found - known) <= CHANGE_MIN * known):
            return known if renews else None
        found = found if abs(distance) - doubt > CLEAR else 1.0
        return None if weight < PREFILLS_MIN or found == known else found

    def _median_at(self, now_us: int) -> float:
        if not 0 <= now_us - self._median_us < MEDIAN_AGE_US:
            self._median_us = now_us
            means = [each.mean for each in self._workers.values() if each.weight_at(now_us) >= PEER_MIN]
            self._median = median(means) if means else 0.0
        return self._median
