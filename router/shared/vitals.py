"""Vitals of a replica, told with every heartbeat: its state, and its counters since it started.

They are no part of the fold, and nothing decides by them: operators and the console look at them. For rates
of the whole fleet, read all replicas' vitals twice and divide the difference; a counter that is smaller than
before is another process's. Fields are only ever added, with a default: replicas of several versions read it.
"""

import msgspec


class Vitals(msgspec.Struct, frozen=True):
    """One replica at one moment; counters count since its start.

    Attributes:
        version: Version of the gateway.
        address: Its address for clients.
        admin_address: Its address for operators; the same, if the admin API has no port of its own.
        started_unix_s: Time of its start.
        at_unix_s: Time of these vitals, by its own clock.
        ready: True if it has read the whole shared log once.
        lag_s: Age of the entry of the log that it read last.
        snapshot_age_s: Age of the newest snapshot that it knows; None if there is none.
        holds_snapshot_lease: True if it wrote that one.
        buffered_ops: Operations of its own that Redis has not acknowledged.
        dropped_ops: Those that it gave up since its start.
        skipped_ops: Operations of others that it did not understand.
        degraded: Parts that do not work, a sentence each.
        workers: Workers that it knows.
        workers_healthy: Those of them that it reaches and that take requests.
        inflight: Requests that it serves.
        waiting: Those of them that wait for a worker.
        rss_bytes: Memory of its process.
        cpu_s: CPU time of its process, all threads.
        loop_lag_s: The worst lateness of its event loop in the last second or so.
        requests: Requests that ended, by outcome (`cacheway_requests_total`).
        rejected: Those of them that were answered with 408, 429 or 503 by the gateway itself.
        prompt_tokens: Prompt tokens of completed requests, as workers said.
        output_tokens: Output tokens of completed requests, as workers said.
        reported_prompt_tokens: Prompt tokens of those whose worker also said how many were cached.
        cached_tokens: Cached tokens of these.
        predicted_tokens: Predicted cached tokens of these.
        ttft_bounds_s: Upper bounds of the histogram of times to first token.
        ttft_counts: Streams at or below each bound, and their number, last.
        ttft_sum_s: Their sum.
        tpot_bounds_s: Upper bounds of the histogram of times per output token, one value per streamed answer.
        tpot_counts: As `ttft_counts`.
    """

    version: str = ""
    address: str = ""
    admin_address: str = ""
    started_unix_s: float = 0.0
    at_unix_s: float = 0.0
    ready: bool = False
    lag_s: float = 0.0
    snapshot_age_s: float | None = None
    holds_snapshot_lease: bool = False
    buffered_ops: int = 0
    dropped_ops: int = 0
    skipped_ops: int = 0
    degraded: tuple[str, ...] = ()
    workers: int = 0
    workers_healthy: int = 0
    inflight: int = 0
    waiting: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    loop_lag_s: float = 0.0
    requests: dict[str, int] = {}
    rejected: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    reported_prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int = 0
    ttft_bounds_s: tuple[float, ...] = ()
    ttft_counts: tuple[int, ...] = ()
    ttft_sum_s: float = 0.0
    tpot_bounds_s: tuple[float, ...] = ()
    tpot_counts: tuple[int, ...] = ()


def decoded(value: bytes) -> Vitals | None:
    """Decode the vitals of another replica; None if they make no sense here."""
    try:
        return msgspec.json.decode(value, type=Vitals)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None
