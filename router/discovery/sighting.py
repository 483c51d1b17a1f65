"""One pod as this replica has seen it so far."""

from dataclasses import dataclass, field
from math import inf

from router.discovery.pods import Pod, PodWorker, Refusal, Refused
from router.discovery.watch import Selection

HOLD_S = (0.0, 5.0, 10.0, 20.0, 40.0, 60.0)
"""Seconds for which a pod must be ready again before its workers go on, by its number of failures."""

CALM_S = 600.0
"""Seconds of readiness after which earlier failures do not count."""


@dataclass(slots=True)
class Sighting:
    """A pod that some selection has.

    Attributes:
        refused: Reason why it is no worker, or gets no requests; None if it does.
        urls: Addresses of its possible workers; `claims` only while it is not refused.
        failures: Recent times that it stopped being ready.
        ready_s: Start of its readiness; None if it is not ready.
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
        """Scope of its most specific selection."""
        return max((selection.role != "", selection.scope) for selection in self.selections)[1]

    @property
    def serves(self) -> bool:
        """True if it should get requests."""
        return self.pod.ready and not self.pod.deleting

    def follow(self, pod: Pod, now_s: float) -> None:
        """Apply its new state, and count a loss of readiness."""
        self.pod = pod
        if pod.ready and self.ready_s is None:
            self.ready_s = now_s
        elif not pod.ready and self.ready_s is not None:
            self.failures = 1 if now_s - self.ready_s > CALM_S else self.failures + 1
            self.ready_s = None

    def held_until_s(self) -> float:
        """Time when the workers of a ready pod may go on; infinite while it is not ready."""
        if self.ready_s is None:
            return inf
        return self.ready_s + HOLD_S[min(max(self.failures - 1, 0), len(HOLD_S) - 1)]

    def not_now(self) -> Refused | None:
        """Reason why a valid pod gets no requests."""
        pod = self.pod
        if pod.deleting:
            return Refused(Refusal.DELETING, f"it is being deleted since {pod.metadata.deletion_timestamp}")
        if pod.status.phase != "Running":
            return Refused(Refusal.NOT_RUNNING, f"its phase is {pod.status.phase}")
        if not pod.ready:
            return Refused(Refusal.NOT_READY, "its condition Ready is not True")
        return None
