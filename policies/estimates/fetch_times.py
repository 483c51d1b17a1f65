"""Time of a fetch from a shared pool: the configured time, times a factor learned from arrived tokens.

An engine begins to fetch when a request comes to it. The queue in the engine hides that, the wait in the
gateway hides nothing (`policies.pricing.timing`). HiCache's policies differ in how long a request waits for
its fetch once the prefill could begin, and only what comes until then is priced:

    best_effort    not at all
    timeout        until a time that grows with the fetch is over, from its begin
    wait_complete  for all of it

A pool that many share is slower than its settings say, which shows in fetches that are cut off:

    less than `WHOLE_RATIO` of a predicted fetch came    the factor grows by `RISE`
    all came                                             it falls by `FALL`, to 1 at least
    nothing was to be fetched                            it falls by `FORGET`: expensive fetches are retried

An engine with ``wait_complete`` cuts none off: the factor stays 1. Without a queue in the gateway the wait
in the engine is a prediction, of minutes at times, and no promise: there ``best_effort`` is priced as if all
came, and the factor alone accounts for the rest.
"""

WAIT_BASE_S, WAIT_TOKEN_S, WAIT_S_MAX = 2.0, 0.1 / 1024, 30.0
"""Longest wait of ``timeout``: seconds, seconds a token, and their bound (SGLang 0.5.23
``hicache_storage.py``, ``PrefetchTimeoutConfig``)."""

WHOLE_RATIO = 0.9
"""Share of a fetch that counts as all of it: text is rounded to blocks."""

RISE, FALL, FORGET = 0.1, 0.02, 0.001
"""Steps of the factor: in balance one fetch of six is cut off."""

FACTOR_MAX = 16.0
"""Greatest factor [guess]."""


def bounded(factor: float) -> float:
    """Return a factor within 1 to `FACTOR_MAX`, as others may say it."""
    return min(max(factor, 1.0), FACTOR_MAX)


def learned(factor: float, fetched_share: float | None) -> float:
    """Return the factor after a request, by the share of its predicted fetch that came, None without one."""
    step = -FORGET
    if fetched_share is not None:
        step = RISE if fetched_share < WHOLE_RATIO else -FALL
    return bounded(factor * (1.0 + step))
