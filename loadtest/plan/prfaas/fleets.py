"""The fleets that are compared, and each one's rule for the site of a prefill.

    homogeneous  9 H20 prefill, 3 H20 decode                          no remote prefill
    naive        4 H200 prefill in another site, 8 H20 decode         all prefill is remote
    static       4 H200 prefill in another site, 3 + 5 H20            remote above 19.4K uncached tokens
    ours         the same fleet                                       what the gateway does

(PrfaaS, arXiv:2604.15039, section 4.1 and table 6: the first has 96 H20, the others 32 H200 and 64 H20; eight
make an instance.) The same gateway code with the same policy and queue serves all. ``static`` has the paper's
fixed threshold; ``ours`` the gateway's defaults: the slow loop's threshold, the short-term rule, and help
between sites.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadtest.plan.prfaas.engines import H20, H200
from loadtest.plan.prfaas.paper import THRESHOLD_TOKENS
from loadtest.simulator.fleet import WorkerGroup
from policies import link_name
from policies.disaggregation import NEVER_TOKENS, OffloadRules

HOME, REMOTE = "home", "remote"
LINK = link_name(REMOTE, HOME)


@dataclass(frozen=True, slots=True)
class Contender:
    """A fleet with its rule.

    Attributes:
        knows_link: The gateway knows the link, and so chooses between the sites.
        offload: Its rule.
    """

    name: str
    groups: tuple[WorkerGroup, ...]
    knows_link: bool = False
    offload: OffloadRules = field(default_factory=OffloadRules)

    @property
    def remote(self) -> int:
        """Number of its workers that prefill in the other site; they have the first slots."""
        return sum(group.count for group in self.groups if group.site == REMOTE)


def _groups(remote: int, prefill: int, decode: int) -> tuple[WorkerGroup, ...]:
    groups = (
        WorkerGroup(name="remote", profile=H200, count=remote, role="prefill", site=REMOTE),
        WorkerGroup(name="prefill", profile=H20, count=prefill, role="prefill", site=HOME),
        WorkerGroup(name="decode", profile=H20, count=decode, role="decode", site=HOME),
    )
    return tuple(group for group in groups if group.count)


def _static(threshold_tokens: int) -> OffloadRules:
    return OffloadRules(threshold_tokens=threshold_tokens, surges=False, helps=False)


CONTENDERS: Mapping[str, Contender] = {
    one.name: one
    for one in (
        Contender("homogeneous", _groups(0, 9, 3)),
        Contender("naive", _groups(4, 0, 8)),
        Contender("static", _groups(4, 3, 5), knows_link=True, offload=_static(THRESHOLD_TOKENS)),
        Contender("ours", _groups(4, 3, 5), knows_link=True),
    )
}

LOCAL = Contender("local", _groups(4, 3, 5), knows_link=True, offload=_static(NEVER_TOKENS))
"""The machines of the last two, of which those in the other site do nothing."""

EVERYTHING = Contender("everything", _groups(4, 3, 5), knows_link=True, offload=_static(1))
"""The machines of ``static`` with all prefill in the other site, so more local workers decode."""
