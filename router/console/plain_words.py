"""Degraded states in plain words: the fault, its effect, and its remedy.

A trouble keeps its code and the time it was first seen while it lasts, so that the page can show its age. The
sentences quote names that others wrote: the page shows them as text, never as markup.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from router.console.ports import Conditions, WorkerFacts

NAMED_MAX = 4
"""Workers that a sentence names."""

LATE_S = 2.0
"""Lag of the shared log that is worth a word: some prompts are placed without knowing the latest."""

REFUSED_RATIO = 0.5
"""Share of refused requests that is worth a word: single clients make mistakes, fleets do not."""

Severity = Literal["critical", "warning", "notice"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """One fault: a stable code, and sentences about the fault and its effect on requests.

    ``critical``: requests are lost. ``warning``: something suffers. ``notice``: good to know.
    """

    code: str
    severity: Severity
    what: str
    effect: str


class Troubles:
    """Current faults, and since when. Not for several callers with different clocks."""

    def __init__(self) -> None:
        self._since_unix_s: dict[str, float] = {}

    def look(
        self, conditions: Conditions, facts: Sequence[WorkerFacts], now_unix_s: float
    ) -> list[dict[str, object]]:
        """Return the current faults, the worst first, for JSON."""
        found = list(troubles(conditions, facts))
        since = {each.code: self._since_unix_s.get(each.code, now_unix_s) for each in found}
        self._since_unix_s = since
        order: tuple[Severity, ...] = ("critical", "warning", "notice")
        return [
            {
                "code": each.code,
                "severity": each.severity,
                "what": each.what,
                "effect": each.effect,
                "since_unix_s": round(since[each.code], 1),
            }
            for each in sorted(found, key=lambda each: order.index(each.severity))
        ]


def troubles(conditions: Conditions, facts: Sequence[WorkerFacts]) -> Iterator[Trouble]:
    """Say everything that is wrong."""
    if conditions.ending:
        yield Trouble(
            "ending",
            "notice",
            "This replica was told to end.",
            "It finishes its requests and takes no new ones; the other replicas serve on.",
        )
    yield from _of_workers(facts)
    yield from _of_shared_state(conditions)
    yield from _of_traffic(conditions)
    for link, state in sorted((conditions.links or {}).items()):
        if state == "down":
            yield Trouble(
                f"link:{link}",
                "warning",
                f"The link {link} is down: at least half of its transfers failed.",
                "Prompts are prefilled in their own site until one transfer gets through.",
            )
    if conditions.keys is not None:
        yield Trouble(
            "keys",
            "warning",
            f"The file of tenants' keys cannot be used: {conditions.keys}",
            "The keys that were read before still count; changes wait until the file is sound.",
        )
    for code, sentence in conditions.other:
        yield Trouble(code, "warning", sentence, "")


def _of_workers(facts: Sequence[WorkerFacts]) -> Iterator[Trouble]:
    if not facts:
        yield Trouble(
            "no_workers",
            "critical",
            "No worker is known.",
            "Every request is refused until a worker is added.",
        )
        return
    states = Counter(each.state for each in facts)
    taking = [each for each in facts if each.state == "healthy" and each.circuit != "open"]
    if not taking:
        yield Trouble(
            "no_healthy_worker",
            "critical",
            f"No worker takes requests: {_summed(states)}.",
            "Requests are refused or wait until one is well again.",
        )
    unhealthy = [each.id for each in facts if each.state == "unhealthy"]
    if unhealthy:
        yield Trouble(
            "unhealthy",
            "warning",
            f"{_some(unhealthy, len(facts))} not answer health checks: {_named(unhealthy)}.",
            "The others take new requests; those in flight there end with an answer or at their time limits. "
            "Health checks go on: see the engine's log, or remove the worker.",
        )
    ejected = [each.id for each in facts if each.circuit == "open"]
    if ejected:
        yield Trouble(
            "ejected",
            "warning",
            f"Requests failed on {_named(ejected)}: ejected.",
            "They get no requests for a while, then one to try. The engine's log says why.",
        )


def _of_shared_state(conditions: Conditions) -> Iterator[Trouble]:
    if conditions.redis is not None:
        yield Trouble(
            "redis",
            "warning",
            f"Replicas do not share their state: {conditions.redis.rstrip('.')}.",
            "Requests are served. Each replica decides by its own knowledge, so hits get fewer; figures "
            "here are of this replica. Bring Redis back; no replica needs a restart.",
        )
    elif conditions.warming is not None:
        phase, progress = conditions.warming
        yield Trouble(
            "warming",
            "notice",
            f"This replica still reads the shared state ({phase}, {progress:.0%}).",
            "Until then it knows fewer cached blocks than the others; requests are served.",
        )
    elif conditions.lag_s > LATE_S:
        yield Trouble(
            "lag",
            "warning",
            f"Operations of other replicas arrive here {conditions.lag_s:.1f} s late.",
            "Workers may look less busy than they are; requests are served.",
        )
    for replica in conditions.lost_replicas:
        yield Trouble(
            f"replica:{replica}",
            "notice",
            f"Replica {replica} fell silent without a goodbye.",
            "Its connections are lost; the others serve on, and its reservations are free again. Its own "
            "log and its pod say why. This is shown until it is back, for ten minutes at most.",
        )
    if conditions.dropped_ops:
        yield Trouble(
            "dropped",
            "notice",
            f"{conditions.dropped_ops:,} operations of this replica were dropped since it started.",
            "Their updates of caches were lost; requests in flight were reported again.",
        )
    if conditions.limits is not None:
        yield Trouble(
            "limits",
            "warning",
            f"Limits of tenants are kept by fair shares: {conditions.limits}.",
            "Each replica grants its part; a tenant that comes to one replica only gets less than its limit.",
        )


def _of_traffic(conditions: Conditions) -> Iterator[Trouble]:
    if conditions.rejected_per_s:
        yield Trouble(
            "rejecting",
            "critical",
            f"{_rate(conditions.rejected_per_s)} rejected in the last minute.",
            "There is no room, no time left, or a limit is reached; clients got a Retry-After.",
        )
    if conditions.failed_per_s:
        yield Trouble(
            "failing",
            "critical",
            f"{_rate(conditions.failed_per_s)} failed on workers in the last minute.",
            "Clients got an error, or a stream that broke off; others were tried where that was possible.",
        )
    if conditions.refused_ratio > REFUSED_RATIO:
        yield Trouble(
            "refusing",
            "warning",
            f"Workers refuse {100 * conditions.refused_ratio:.0f} % of the requests (4xx).",
            "Mostly a model that no worker serves, or a field that the engine does not take: its answer says "
            "which. Workers are not ejected for it.",
        )


def _rate(per_s: float) -> str:
    if per_s >= 1:
        return f"{per_s:,.0f} requests per second"
    per_minute = max(round(per_s * 60), 1)
    return f"{per_minute:,} {'request' if per_minute == 1 else 'requests'}"


def _some(ids: Sequence[str], total: int) -> str:
    return f"{len(ids):,} of {total:,} workers {'does' if len(ids) == 1 else 'do'}"


def _named(ids: Sequence[str]) -> str:
    more = len(ids) - NAMED_MAX
    return ", ".join(ids[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _summed(states: Counter[str]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
