"""Made-up parts of a plan: reports on them need no simulation."""

from math import nan

from loadtest.engine.profiles import PROFILES
from loadtest.plan.candidate import Candidate, Family
from loadtest.plan.charts import Curve
from loadtest.plan.dual_pools import layers_of
from loadtest.plan.objective import Figures, Prices, Slo
from loadtest.plan.outcome import Outcome
from loadtest.plan.steps import steps_around
from loadtest.plan.tier_value import Line, TierValue
from loadtest.plan.trial import Trial
from loadtest.simulator.contenders import Contender
from loadtest.simulator.workload import Session, SimRequest, Workload

OURS, THEIRS = Family(Contender("expected_cost"), split=False), Family(Contender("random"), split=False)
SPLIT = Family(Contender("expected_cost"), split=True)
CURVE = Curve(1_000_000, (500_000, 1_000_000, 2_000_000, 4_000_000), (0.1, 0.2, 0.4, 0.5), 0.6)

TIERS = TierValue(
    4,
    0.6,
    100.0,
    0.2,
    Line((10, 60, 600), (0.1, 0.3, 0.58)),
    Line((100.0, 200.0), (0.3, 0.4)),
    Line((50.0, 100.0), (0.4, 0.5)),
)


def figures(ttft_p90_s: float, *, tpot_p90_s: float = 0.02, completed_share: float = 1.0) -> Figures:
    """Figures of a summary that a plan reads."""
    return {
        "ttft_p90_s": ttft_p90_s,
        "tpot_p90_s": tpot_p90_s,
        "completed_share": completed_share,
        "hit_ratio": 0.5,
        "utilisation_max": 0.7,
    }


def trial(ttft_p90_s: float, *, tpot_p90_s: float = 0.02, completed_share: float = 1.0) -> Trial:
    """A trial whose quarters differ a little, and its long requests a lot."""
    told = figures(ttft_p90_s, tpot_p90_s=tpot_p90_s, completed_share=completed_share)
    quarters_s = tuple(ttft_p90_s * scale for scale in (0.8, 0.9, 1.1, 1.2))
    lengths_s = (0.5 * ttft_p90_s, nan, 3.0 * ttft_p90_s)
    return Trial(told, (0.95 * ttft_p90_s, 1.05 * ttft_p90_s), quarters_s, lengths_s)


def outcome(*, found: bool = True, limit_s: float = 3.0) -> Outcome:
    """Four workers of ours hold a limit of 3 s, three do not."""
    plan = Candidate(OURS, 4)
    steps = [
        (step, float(step.candidate.workers), [trial(2.4), trial(2.5)])
        for step in steps_around(plan, [THEIRS.contender], [0.0, 512.0], [0.0])
    ]
    return Outcome(
        workload=Workload("a trace", (Session(0.0, (SimRequest(b"", 10, 5),)),), notes="made up"),
        engine=PROFILES["dense-70b"],
        slo=Slo(limit_s, 0.05),
        prices=Prices(2.5, 0.01),
        found=[plan] if found else [],
        tried=[
            (Candidate(OURS, 3), 7.5, trial(3.5)),
            (plan, 10.0, trial(2.0)),
            (plan, 10.0, trial(2.2)),
            (Candidate(THEIRS, 3), 7.5, trial(5.0)),
        ],
        steps=steps if found else [],
        simulations=14,
        workers_min=2,
        curve=CURVE,
        tiers=TIERS,
        layers=layers_of(PROFILES["mimo-v2.5-pro"]),
        assumed=["Everything <is> made up."],
        divisions=None,
        whole=plan if found else None,
    )
