"""A second policy that is asked for its choice and never obeyed.

    decide ── weighed ──> ShadowObserver   each request once, when it comes, whether it then waits or not
                             ├─ Shadow     asks another policy about a sample of them, and compares
                             └─ (an explanation, `router.explaining.explanation`)

Both choices are judged by one service-time model, on the fleet as it is: so a difference is the gain or loss
of the next request, not of the fleet, whose caches would differ. `cacheway simulate` replays a trace for
that.

The sample follows from the prompt, so all replicas ask about the same prompts. For pairs, the prefill workers
on the chosen side of a link are compared. Asking a policy that takes turns counts none.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from policies.disaggregation.pair_decision import ScoredPair
from policies.dispatch.ports import ScoredRequest
from policies.fleet.fleet import FleetState
from policies.pricing.views import Shed
from policies.scoring import Policy
from policies.scoring.placement import place
from policies.state.rendezvous import weights

MODELS_MAX = 100
"""Models that are told apart; further ones count under `OTHERS`, since names come from clients."""

OTHERS = "*"

NEWEST = 1000
"""Differences kept of each model, for their quantiles."""

_SAMPLE = 0x9C5F_3D1B_6E2A_8477
"""Hashed with a prompt to decide its sampling: equal to a worker's hash only by accident."""


class Judged(msgspec.Struct, frozen=True, gc=False):
    """Two choices for one request: second less first, in seconds to the first token and cached tokens."""

    agreed: bool
    ttft_s: float
    cached_tokens: float


class Comparison:
    """All choices for the requests of one model: sums, and the `NEWEST` differences.

    ``unplaced`` counts requests for which the second policy considered no worker, ``judged`` the others.
    """

    __slots__ = ("agreed", "cached_tokens", "judged", "newest", "ttft_s", "unplaced")

    def __init__(self) -> None:
        self.judged = self.agreed = self.unplaced = 0
        self.ttft_s = self.cached_tokens = 0.0
        self.newest: deque[Judged] = deque(maxlen=NEWEST)

    def add(self, judged: Judged) -> None:
        """Count a request."""
        self.judged += 1
        self.agreed += judged.agreed
        self.ttft_s += judged.ttft_s
        self.cached_tokens += judged.cached_tokens
        self.newest.append(judged)

    def quantiles(self, shares: tuple[float, ...]) -> tuple[list[float], list[float]]:
        """Quantiles of the newest differences, in seconds and in tokens; 0 without any."""
        newest = self.newest
        if not newest:
            return [0.0] * len(shares), [0.0] * len(shares)
        rows = [round(share * (len(newest) - 1)) for share in shares]
        seconds = sorted(judged.ttft_s for judged in newest)
        tokens = sorted(judged.cached_tokens for judged in newest)
        return [seconds[row] for row in rows], [tokens[row] for row in rows]


class Shadow:
    """Asks another policy about a share of the prompts.

    ``report`` receives each result; None stands for a request for which it considered no worker.
    """

    def __init__(
        self,
        policy: Policy,
        fleet: FleetState,
        ratio: float,
        report: Callable[[Judged | None], None] = lambda _: None,
    ) -> None:
        assert 0.0 <= ratio <= 1.0
        self.policy = policy
        self.ratio = ratio
        self._fleet = fleet
        self._below = round(ratio * 2**64)
        self._report = report
        self.models: dict[str, Comparison] = {}

    def samples(self, key: int) -> bool:
        """True if it is asked about a prompt."""
        return weights(key, _SAMPLE) < self._below

    def weighed(self, weighed: ScoredRequest) -> None:
        """Compare, if the request is sampled and the active policy chose a worker."""
        first, policy, view = weighed.first, self.policy, weighed.view
        if isinstance(first, Shed) or not self.samples(view.key):
            return
        candidates = weighed.candidates
        if isinstance(weighed, ScoredPair) and policy.price is None:
            slots = weighed.decode_view.without_decode(candidates.slots)
            candidates = self._fleet.among(candidates, slots, weighed.bucket)
        second = place(view, candidates, policy)
        comparison = self._of(weighed.model)
        if isinstance(second, Shed):
            comparison.unplaced += 1
            self._report(None)
            return
        judged = Judged(
            second.slot == first.slot,
            second.estimated_ttft_s - first.estimated_ttft_s,
            float(second.safe_tokens - first.safe_tokens),
        )
        comparison.add(judged)
        self._report(judged)

    def _of(self, model: str) -> Comparison:
        comparison = self.models.get(model)
        if comparison is None:
            if len(self.models) >= MODELS_MAX:
                model = OTHERS
            comparison = self.models.setdefault(model, Comparison())
        return comparison
