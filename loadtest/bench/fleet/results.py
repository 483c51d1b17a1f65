"""Results: one JSON line for each run, so that a bench may be run part by part."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from loadtest.lines import whole_lines
from loadtest.unchanged.revision import confirmed, same_decisions

LATE_RATIO_MAX = 0.05


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One router in one cell, once. Times are in trace seconds unless they say otherwise.

    Attributes:
        repetition: From 0; all routers of a repetition get the same requests.
        revision: Fingerprint of the measured decision code (`loadtest.unchanged.revision`).
        seconds: Trace time in which requests were sent.
        speed: Trace seconds in a second.
        hit_ratio: Cached prompt tokens over all.
        ideal_hit_ratio: Hit ratio of one infinite cache.
        imbalance: Prefill time of the busiest worker over the mean.
        late_s: Mean delay of a request or a first token by the bench itself, the greater of both.
        busy_ratio: Share of the machine's CPU time that was not idle.
        wall_s: Real seconds, like the CPU times.
    """

    cell: str
    router: str
    repetition: int
    revision: str
    date: str
    seconds: float
    speed: float
    requests: int
    failed: int
    hit_ratio: float
    ideal_hit_ratio: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    imbalance: float
    late_s: float
    busy_ratio: float
    wall_s: float
    router_cpu_s: float
    load_cpu_s: float
    worker_cpu_s: float

    @property
    def valid(self) -> bool:
        """False if a request failed, or the bench delayed requests or first tokens by over 5 % of mean TTFT.

        Its processes share the cores with the router, so what delays the router delays them.
        """
        late = self.late_s > LATE_RATIO_MAX * self.ttft_mean_s
        return not self.failed and self.requests > 0 and not late


def append(path: Path, outcome: Outcome) -> None:
    """Add one line; `OSError` if that fails."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(outcome) + b"\n")


def read(path: Path) -> list[Outcome]:
    """Read all lines and remove one that was cut off; none without a file.

    Raises `OSError` or `DecodeError`.
    """
    return [msgspec.json.decode(line, type=Outcome) for line in whole_lines(path)]


def of_revision(outcomes: Iterable[Outcome], revision: str) -> list[Outcome]:
    """Return the runs of one revision, and of those that decide the same."""
    listed = {replicas: confirmed(replicas=replicas) for replicas in (1, 2)}
    return [
        outcome
        for outcome in outcomes
        if same_decisions(outcome.revision, revision, listed[1 if outcome.cell.endswith("-1r") else 2])
    ]
