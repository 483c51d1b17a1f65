"""Changes of workers by operators and by this gateway: an entry names the changed fields only.

Any number of replicas may change one worker at the same time: entries are merged field by field and label by
label (`policies.state.worker_fields`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from policies import Worker, WorkerPut
from router.fleet.discovered import kept


@dataclass(frozen=True, slots=True)
class Change:
    """New properties; None leaves one as it is. `leaving` removes a draining worker when it has drained."""

    role: str | None = None
    draining: bool | None = None
    capacity_tokens: int | None = None
    labels: Mapping[str, str] | None = None
    leaving: bool | None = None
    ranks: int | None = None

    def of(self, worker: Worker, now_us: int, replica: str) -> WorkerPut:
        """Return the operations to publish.

        Args:
            worker: The worker as known now.
            now_us: Log time.
            replica: Id of this replica.
        """
        fields: dict[str, Any] = {}
        if self.role is not None:
            fields["role"] = self.role
        if self.capacity_tokens is not None:
            fields["capacity_tokens"] = self.capacity_tokens
        if self.ranks is not None:
            fields["ranks"] = self.ranks
        drains = worker.draining
        if self.draining is not None:
            drains = fields["draining"] = self.draining
            fields["drain_us"] = (worker.drain_us or now_us) if drains else 0
        if self.leaving is not None or self.draining is False:
            fields["leaving"] = drains and bool(self.leaving)
        labels = worker.labels if self.labels is None else self.labels
        labels = kept(worker.labels, labels, drain_said=self.draining is not None)
        return worker.changed(now_us, replica, labels, **fields)
