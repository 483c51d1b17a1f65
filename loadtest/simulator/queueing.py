"""Settings of queue and admission in a simulated gateway, as plain data.

The parts are the production ones (`policies.RequestQueue`, `policies.Admission`, `policies.Tickets`) on
virtual time. To save CPU a simulation lets more time pass between two looks at all workers, and until waiting
requests decide afresh out of turn. A worker whose load fell is looked at at once in either.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from policies import AdmissionRules, RoomRules, ServiceLevel, class_of

LOOK_S = 0.05
"""Between two looks at all workers: an order below the backlog that a worker is given."""

ASK_S = 2.0
"""A request that waits decides afresh no sooner than that, unless it is its turn."""

PATIENT = RoomRules(size=1_000_000, tokens_max=0, timeout_s=1e6, look_s=LOOK_S, ask_s=ASK_S)
"""All requests are let in, and none expires."""

DEFAULT_FLOW = "normal/"
"""Flow of a request whose session was drawn into none."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A part of the traffic that is to be treated fairly (`policies.state.fairness`).

    Attributes:
        name: ``CLASS/TENANT``.
        share: Share of the sessions, above 0; relative to the others.
        weight: Weight of its class among classes, above 0.
    """

    name: str
    share: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """The waiting queue of all replicas.

    Attributes:
        k: A request's key is its arrival plus k times its predicted prefill; 0: first come, first served.
        level: Requests predicted to miss it are rejected; by default nothing is promised.
        quantum_s: Most seconds that a flow may be ahead of its share.
        window_s: Over which service is compared.
        flows: Sessions are drawn into them; empty: all are of one flow.
    """

    k: float = 4.0
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    room: RoomRules = PATIENT
    level: ServiceLevel = field(default_factory=ServiceLevel)
    quantum_s: float = 1.0
    window_s: float = 60.0
    flows: tuple[Flow, ...] = ()

    def weight_of(self) -> Callable[[str], float]:
        """Weight of a class by its name; tenants of one class share evenly (`policies.Fairness`)."""
        weights = {class_of(flow.name): flow.weight for flow in self.flows}
        return lambda name: weights.get(name, 1.0)
