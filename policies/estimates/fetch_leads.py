"""Fetches from a shared pool: how long they really take, and how much sooner requests go for them.

An engine begins to fetch when a request comes to it. The queue in the engine hides that, the wait in the
gateway hides nothing; HiCache's ``best_effort`` even ends a fetch when the prefill could begin. So

* the price of a fetch is hidden only by the backlog that the engine is given (`policies.pricing.timing`);
* it is the configured time times a *factor*, learned from fetches that were cut off, since many may share the
  pool;
* workers with a pool are given more backlog by its *lead*: the mean fetch of a request, 0 for one that
  fetches nothing. All requests have the same target, so their order stays (`policies.fleet.admission`).

    less than `WHOLE_RATIO` of a predicted fetch came    the factor grows by `RISE`
    all came                                             it falls by `FALL`, to 1 at least
    nothing was to be fetched                            it falls by `FORGET`: what is too dear is tried again

Engines that wait for a fetch (``timeout``, ``wait_complete``) cut none off: the factor stays 1.
"""

LEAD_S_MAX = 8.0
"""Longest lead, in predicted seconds, and the most that one fetch counts [guess]."""

MEMORY = 64
"""Requests over which fetches are averaged, as in `policies.fleet.admission`."""

WHOLE_RATIO = 0.9
"""Share of a fetch that counts as all of it: text is rounded to blocks."""

RISE, FALL, FORGET = 0.1, 0.02, 0.001
"""Steps of the factor: in balance one fetch of six is cut off."""

FACTOR_MAX = 16.0
"""Greatest factor [guess]."""


class FetchEstimate:
    """Learns of one pool; ``lead_s`` is 0 to `LEAD_S_MAX`, ``factor`` 1 to `FACTOR_MAX`."""

    __slots__ = ("factor", "lead_s")

    def __init__(self, lead_s: float = 0.0, factor: float = 1.0) -> None:
        self.lead_s = min(max(lead_s, 0.0), LEAD_S_MAX)
        self.factor = min(max(factor, 1.0), FACTOR_MAX)

    def observe(self, fetch_s: float, share: float) -> None:
        """Learn from a request with such a predicted fetch, 0 for none, of which a share came, 0 to 1."""
        self.lead_s += (min(fetch_s, LEAD_S_MAX) - self.lead_s) / MEMORY
        step = -FORGET
        if fetch_s:
            step = RISE if share < WHOLE_RATIO else -FALL
        self.factor = min(max(self.factor * (1.0 + step), 1.0), FACTOR_MAX)
