"""An observer of decisions, and what it is told of each request.

    decide ── weighed ──> ShadowObserver   each request once, when it comes, whether it then waits or not

A shadow policy (`policies.observing.shadow`) and an explanation (`router.explaining.explanation`) observe.
"""

from typing import Protocol

import msgspec

from policies.pricing.views import Candidates, Chosen, RequestView, Shed
from policies.scoring import Policy


class ScoredRequest(msgspec.Struct, frozen=True, eq=False):
    """A request as it was weighed when it came.

    Attributes:
        everyone: Workers that may take it.
        candidates: Those that the policy chose among.
        first: Choice of the policy, before its turn was judged.
    """

    model: str
    view: RequestView
    everyone: Candidates
    candidates: Candidates
    policy: Policy
    first: Chosen | Shed
    bucket: int


class ShadowObserver(Protocol):
    """Observer of how requests are weighed."""

    def weighed(self, weighed: ScoredRequest) -> None:
        """Take note of a new request, before anything changes. Must not raise."""
