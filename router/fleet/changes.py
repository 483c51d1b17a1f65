"""Changes of workers by people and by this gateway: only what is changed is said.

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
    """What is to be otherwise; None leaves a property as it is.

    Attributes:
        role: ``plain``, ``prefill``, ``decode`` or ``encode``.
        draining: Whether it takes no new requests.
        capacity_tokens: KV capacity.
        labels: All that it is to have, but for what discovery notes.
        leaving: Whether it is to be removed when it has drained; only counts while it drains.
    """

    role: str | None = None
    draining: bool | None = None
    capacity_tokens: int | None = None
    labels: Mapping[str, str] | None = None
    leaving: bool | None = None

    def of(self, worker: Worker, now_us: int, replica: str) -> WorkerPut:
        """Return what to publish.

        Args:
            worker: As it is known.
            now_us: Log time.
            replica: Id of this replica.
        """
        fields: dict[str, Any] = {}
        if self.role is not None:
            fields["role"] = self.role
        if self.capacity_tokens is not None:
            fields["capacity_tokens"] = self.capacity_tokens
        drains = worker.draining
        if self.draining is not None:
            drains = fields["draining"] = self.draining
            fields["drain_us"] = (worker.drain_us or now_us) if drains else 0
        if self.leaving is not None or self.draining is False:
            fields["leaving"] = drains and bool(self.leaving)
        labels = worker.labels if self.labels is None else self.labels
        labels = kept(worker.labels, labels, drain_said=self.draining is not None)
        return worker.changed(now_us, replica, labels, **fields)
