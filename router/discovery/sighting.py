"""One pod as this replica has seen it so far."""

from dataclasses import dataclass, field

from router.discovery.pods import Pod, PodWorker, Refusal, Refused
from router.discovery.watch import Selection

HOLD_S = (0.0, 5.0, 10.0, 20.0, 40.0, 60.0)
"""How long a pod must be ready again before its workers go on: after its first failure, its second, ..."""

CALM_S = 600.0
"""A pod that was ready for so long has never failed."""


@dataclass(slots=True)
class Sighting:
    """A pod that some selection has.

    Attributes:
        pod: As last seen.
        selections: Which have it.
        refused: Why it is no worker, or gets no requests; None if it does.
        urls: Where workers may be on its account.
        claims: The workers that it says it is, by URL; none while it says what cannot be.
        failures: How often it stopped being ready lately.
        ready_s: Since when it is ready, as seen here; None if it is not.
    """

    pod: Pod
    selections: set[Selection]
    refused: Refused | None = None
    urls: set[str] = field(default_factory=set)
    claims: dict[str, PodWorker] = field(default_factory=dict)
    failures: int = 0
    ready_s: float | None = None

    @property
    def scope(self) -> str:
        """Of the selection that says most about it."""
        return max((selection.role != "", selection.scope) for selection in self.selections)[1]

    @property
    def serves(self) -> bool:
        """Whether it should get requests."""
        return self.pod.ready and not self.pod.deleting

    def follow(self, pod: Pod, now_s: float) -> None:
        """Take in what it is now, and count how often it stops being ready."""
        self.pod = pod
        if pod.ready and self.ready_s is None:
            self.ready_s = now_s
        elif not pod.ready and self.ready_s is not None:
            self.failures = 1 if now_s - self.ready_s > CALM_S else self.failures + 1
            self.ready_s = None

    def held_until_s(self) -> float:
        """When its workers may go on, if it stays ready; only of one that is."""
        assert self.ready_s is not None
        return self.ready_s + HOLD_S[min(max(self.failures - 1, 0), len(HOLD_S) - 1)]

    def not_now(self) -> Refused | None:
        """Why it gets no requests, although nothing is wrong with what it says."""
        pod = self.pod
        if pod.deleting:
            return Refused(Refusal.DELETING, f"it is being deleted since {pod.metadata.deletion_timestamp}")
        if pod.status.phase != "Running":
            return Refused(Refusal.NOT_RUNNING, f"its phase is {pod.status.phase}")
        if not pod.ready:
            return Refused(Refusal.NOT_READY, "its condition Ready is not True")
        return None
