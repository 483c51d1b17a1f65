"""The fleets of the case study, and where each prefills."""

from collections import Counter

import numpy as np
import pytest

from loadtest.plan.prfaas.engines import H20, H200
from loadtest.plan.prfaas.fleets import CONTENDERS, HOME, REMOTE
from loadtest.plan.prfaas.paper import THRESHOLD_TOKENS
from loadtest.plan.prfaas.traffic import lognormal_workload
from loadtest.plan.prfaas.trials import config_of
from loadtest.simulator.records import Records
from loadtest.simulator.simulation import simulate


def run(fleet: str, rate_per_s: float) -> Records:
    workload = lognormal_workload(200, rate_per_s, seed=2)
    return simulate(workload, config_of(CONTENDERS[fleet], seed=2, warmup_s=0.0)).records


@pytest.mark.parametrize(
    ("fleet", "h200", "h20"),
    [("homogeneous", 0, 96), ("naive", 32, 64), ("static", 32, 64), ("ours", 32, 64)],
)
def test_a_fleet_has_the_papers_accelerators_and_the_fast_ones_only_prefill_elsewhere(
    fleet: str, h200: int, h20: int
) -> None:
    accelerators: Counter[str] = Counter()
    for group in CONTENDERS[fleet].groups:
        accelerators[group.profile.name] += 8 * group.count
        away = (group.profile, group.role, group.site) == (H200, "prefill", REMOTE)
        assert away or (group.profile, group.site) == (H20, HOME)
    assert (accelerators[H200.name], accelerators[H20.name]) == (h200, h20)


def test_static_and_ours_differ_in_their_rule_alone() -> None:
    static, ours = CONTENDERS["static"], CONTENDERS["ours"]
    assert static.groups == ours.groups
    assert static.knows_link
    assert ours.knows_link
    assert (static.offload.threshold_tokens, ours.offload.threshold_tokens) == (THRESHOLD_TOKENS, 0)


@pytest.mark.parametrize(("fleet", "remote"), [("homogeneous", 0), ("naive", 4), ("static", 4), ("ours", 4)])
def test_workers_of_the_other_site_have_the_first_slots(fleet: str, remote: int) -> None:
    contender = CONTENDERS[fleet]
    sites = [group.site for group in contender.groups for _ in range(group.count)]
    assert sites == [REMOTE] * remote + [HOME] * (len(sites) - remote)
    assert contender.remote == remote


def test_homogeneous_prefills_nothing_elsewhere_and_naive_everything() -> None:
    assert set(run("homogeneous", 1.2).worker) == set(range(9))
    assert set(run("naive", 1.2).worker) == set(range(4))


@pytest.mark.parametrize("rate_per_s", [0.5, 3.0])
def test_static_goes_by_length_whatever_waits_where(rate_per_s: float) -> None:
    records = run("static", rate_per_s)
    remote = records.worker < CONTENDERS["static"].remote
    assert 0.3 < remote.mean() < 0.7
    assert np.array_equal(remote, records.prompt_tokens > THRESHOLD_TOKENS)


def test_ours_takes_a_worker_of_the_other_site_if_that_is_sooner() -> None:
    records = run("ours", 1.6)
    remote = records.worker < CONTENDERS["ours"].remote
    short = records.prompt_tokens <= THRESHOLD_TOKENS
    assert remote[short].any()
    assert not remote.all()
