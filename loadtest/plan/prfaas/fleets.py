"""The fleets that are compared, and the rule by which each chooses where a request is prefilled.

    homogeneous  9 H20 prefill, 3 H20 decode                          no remote prefill
    naive        4 H200 prefill in another site, 8 H20 decode         all prefill is remote
    static       4 H200 prefill in another site, 3 + 5 H20            remote above 19.4K uncached tokens
    ours         the same fleet                                       what the gateway does

(PrfaaS, arXiv:2604.15039, tables 4 and 6: the first has 96 H20, the others 32 H200 and 64 H20; eight make an
instance.) Within its rule every fleet places by the gateway's default policy and queues in the gateway: what
differs is where prefill goes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from loadtest.plan.prfaas.engines import H20, H200
from loadtest.plan.prfaas.paper import THRESHOLD_TOKENS
from loadtest.simulator.fleet import WorkerGroup
from loadtest.simulator.records import Floats
from policies import SITE_LABEL, Candidates, Policy, RequestView, WorkerPut, make_policy

HOME, REMOTE = "home", "remote"
LINK = f"{REMOTE}>{HOME}"


@dataclass(frozen=True, slots=True)
class Contender:
    """A fleet with its rule.

    Attributes:
        name: For tables and plots.
        groups: Its workers.
        choice: Its policy, if that is not the gateway's default.
    """

    name: str
    groups: tuple[WorkerGroup, ...]
    choice: Callable[[Sequence[WorkerPut]], Policy] | None = None

    @property
    def remote(self) -> int:
        """How many of its workers prefill in the other site; they have the first slots."""
        return sum(group.count for group in self.groups if group.site == REMOTE)


def _groups(remote: int, prefill: int, decode: int) -> tuple[WorkerGroup, ...]:
    groups = (
        WorkerGroup(name="remote", profile=H200, count=remote, role="prefill", site=REMOTE),
        WorkerGroup(name="prefill", profile=H20, count=prefill, role="prefill", site=HOME),
        WorkerGroup(name="decode", profile=H20, count=decode, role="decode", site=HOME),
    )
    return tuple(group for group in groups if group.count)


def static_threshold(workers: Sequence[WorkerPut], threshold_tokens: int = THRESHOLD_TOKENS) -> Policy:
    """Prefill in the other site what is longer than a threshold, and only that."""
    base = make_policy("expected_cost")
    is_remote = np.array([put.labels.get(SITE_LABEL) == REMOTE for put in workers])

    def costs(request: RequestView, candidates: Candidates) -> Floats:
        uncached = request.prompt_tokens - candidates.safe_tokens
        long = uncached > threshold_tokens
        allowed = is_remote[candidates.slots] == long
        return np.where(allowed, base.costs(request, candidates), inf)

    return Policy("static_threshold", costs, uses_cache=True)


CONTENDERS: Mapping[str, Contender] = {
    one.name: one
    for one in (
        Contender("homogeneous", _groups(0, 9, 3)),
        Contender("naive", _groups(4, 0, 8)),
        Contender("static", _groups(4, 3, 5), static_threshold),
        Contender("ours", _groups(4, 3, 5)),
    )
}
