"""Simulations of the study, on a handful of requests."""

from dataclasses import dataclass, field
from functools import cache
from math import isnan

import numpy as np
import pytest

from loadtest.plan.prfaas import study
from loadtest.plan.prfaas.fleets import CONTENDERS
from loadtest.plan.prfaas.study import (
    BOUNDS,
    FULL,
    QUICK,
    STORM,
    STORM_LOAD,
    STORM_S,
    Progress,
    Size,
    Study,
    agents_study,
    lognormal_study,
)
from loadtest.plan.prfaas.sustained import Trial
from loadtest.plan.prfaas.trials import LINK, Figures

TINY = Size(requests=12, warmup_s=0.5, rounds=1, curve_rates=(1.2, 2.2, 9.0), users=(2, 3))
TINY_STORM_S = 8.0


@dataclass
class Heard(Progress):
    """Remembers its calls."""

    parts: list[tuple[str, int]] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def begins(self, what: str, simulations: int) -> None:
        self.parts.append((what, simulations))
        self.whole.append(0)

    def told(self, number: int, done: int, total: int) -> None:
        self.whole[-1] += done == total

    def ended(self, what: str) -> None:
        self.ends.append(what)


@cache
def lognormal() -> tuple[Study, Heard]:
    found, heard = Study(TINY, [1, 2]), Heard()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "STORM_S", TINY_STORM_S)
        lognormal_study(found, 1, heard)
    return found, heard


@cache
def agents() -> tuple[Study, Heard]:
    found, heard = Study(TINY, [1, 2]), Heard()
    agents_study(found, 1, heard)
    return found, heard


def figures(ttft_p90_s: float) -> Figures:
    others = dict.fromkeys(Figures.__dataclass_fields__, 0.0)
    return Figures(**{**others, "completed_share": 1.0, "ttft_p90_s": ttft_p90_s})  # type: ignore[arg-type]


def test_the_best_rate_is_the_mean_over_seeds_and_nan_if_nothing_was_sustained() -> None:
    trials = [
        Trial("ours", 2.0, 1, figures(1.0)),
        Trial("ours", 3.0, 2, figures(1.0)),
        Trial("ours", 9.0, 2, figures(99.0)),
        Trial("naive", 2.0, 1, figures(99.0)),
    ]
    found = Study(QUICK, [1, 2], trials={"Poisson": trials})
    assert found.best("Poisson", "ours") == [2.0, 3.0]
    assert found.mean_best("Poisson", "ours") == 2.5
    assert isnan(found.mean_best("Poisson", "naive"))


def test_every_fleet_is_bisected_with_all_seeds_and_with_bursts_with_one() -> None:
    found, _ = lognormal()
    tried = {
        arrivals: sorted((one.contender, one.seed) for one in trials)
        for arrivals, trials in found.trials.items()
    }
    assert tried == {
        "Poisson": sorted((name, seed) for name in CONTENDERS for seed in (1, 2)),
        "bursts": sorted((name, 1) for name in CONTENDERS),
    }


def test_with_bursts_rates_are_looked_for_further_down() -> None:
    found, _ = lognormal()
    for one in found.trials["bursts"]:
        low, high = BOUNDS[one.contender]
        first = {trial.rate_per_s for trial in found.trials["Poisson"] if trial.contender == one.contender}
        assert first == {(low + high) / 2}
        assert one.rate_per_s == pytest.approx((0.7 * low + high) / 2)


def test_no_time_is_shown_far_beyond_what_a_fleet_sustains() -> None:
    found, _ = lognormal()
    shown = {(one.contender, one.rate_per_s) for one in found.curve}
    assert shown == {
        *((name, 1.2) for name in CONTENDERS),
        *((name, 2.2) for name in ("naive", "static", "ours")),
    }
    assert {one.seed for one in found.curve} == {1}


def test_the_bad_link_meets_the_fleets_that_use_it_at_the_same_load() -> None:
    found, _ = lognormal()
    assert list(found.storm) == ["naive", "static", "ours"]
    for name, result in found.storm.items():
        rate_per_s = STORM_LOAD * found.mean_best("Poisson", name)
        assert len(result.records) == round(TINY_STORM_S * rate_per_s)
        assert result.config.links[LINK].weather == STORM
        assert result.config.groups == CONTENDERS[name].groups


def test_every_fleet_is_asked_the_same() -> None:
    storm = [result.records.prompt_tokens for result in lognormal()[0].storm.values()]
    least = min(map(len, storm))
    assert least >= 10
    for tokens in storm:
        assert np.array_equal(tokens[:least], storm[0][:least])
    for users in TINY.users:
        prompts = [np.sort(agents()[0].agents[name, users].records.prompt_tokens) for name in CONTENDERS]
        for tokens in prompts:
            assert np.array_equal(tokens, prompts[0])


def test_agents_reuse_what_they_sent_in_every_fleet_and_number_of_users() -> None:
    found, _ = agents()
    assert set(found.agents) == {(name, users) for name in CONTENDERS for users in TINY.users}
    for (name, _), result in found.agents.items():
        assert result.config.groups == CONTENDERS[name].groups
        assert result.summary()["hit_ratio"] > 0.5  # type: ignore[operator]


def test_progress_hears_of_every_simulation() -> None:
    _, heard = lognormal()
    assert heard.parts == [
        ("highest rates, Poisson", 8),
        ("highest rates, bursts", 4),
        ("time to first token", 7),
        ("bad link", 3),
    ]
    assert heard.whole == [8, 4, 7, 3]
    assert heard.ends == [what for what, _ in heard.parts]
    assert agents()[1].parts == [("agents", 8)]
    assert agents()[1].whole == [8]


def test_bad_weather_comes_in_pairs_that_end_while_requests_still_come() -> None:
    times_s = [one.at_s for one in STORM]
    assert times_s == sorted(times_s)
    assert times_s[-1] < STORM_S
    for bad, good in zip(STORM[::2], STORM[1::2], strict=True):
        assert bad.capacity_ratio < 1 or bad.loss_ratio > 0
        assert (good.capacity_ratio, good.loss_ratio) == (1.0, 0.0)


def test_the_warmup_leaves_most_requests_at_every_rate() -> None:
    for size in (FULL, QUICK):
        assert size.warmup_s * max(high for _, high in BOUNDS.values()) < size.requests / 4
