"""The design: complete where it says so."""

from collections import Counter

from loadtest.study.design import (
    AGENTIC,
    BARE,
    CONTENDERS,
    CONVERSATION,
    OURS,
    RIVALS,
    SEEDS,
    TRAFFIC_KEYS,
    VARIANTS,
    cells,
)
from loadtest.study.report import COMPARED
from loadtest.study.shipped import K
from policies import POLICIES


def test_every_other_policy_of_the_registry_is_a_rival() -> None:
    rivals = {variant.policy for variant in VARIANTS if variant.label in RIVALS}

    assert rivals == set(POLICIES) - {OURS}


def test_the_default_has_the_queue_that_ships_and_the_rivals_have_none() -> None:
    assert {variant.label: variant.queue_k for variant in VARIANTS if variant.queue_k is not None} == {
        OURS: K
    }
    assert next(variant for variant in VARIANTS if variant.label == BARE).policy == OURS


def test_no_cell_is_run_twice() -> None:
    assert max(Counter(cells()).values()) == 1


def test_every_cell_runs_with_every_seed() -> None:
    runs = Counter((cell.scenario, cell.label, cell.queue_k) for cell in cells())

    assert set(runs.values()) == {len(SEEDS)}


def test_the_middle_of_all_traffic_is_run_with_every_rule() -> None:
    middle = [cell for cell in cells() if cell.part == "main" and cell.utilisation == 0.8]

    assert len(middle) == len(TRAFFIC_KEYS) * len(VARIANTS) * len(SEEDS)
    assert {(cell.engine, cell.l3, cell.replicas) for cell in middle} == {("mimo-v2.5-pro", False, 1)}


def test_other_parts_change_one_factor_of_the_middle() -> None:
    for part, factor in (("dense", "engine"), ("l3", "l3"), ("replicas", "replicas")):
        middles = {cell.scenario for cell in cells() if cell.part == "main" and cell.utilisation == 0.8}
        for cell in (cell for cell in cells() if cell.part == part):
            middle = next(middle for middle in middles if middle.traffic == cell.traffic)
            names = ("engine", "host", "l3", "replicas", "utilisation")
            assert [name for name in names if getattr(cell, name) != getattr(middle, name)] == [factor]


def test_every_scenario_that_is_compared_has_all_contenders() -> None:
    labels: dict[object, set[str]] = {}
    for cell in cells():
        if cell.part in COMPARED:
            labels.setdefault(cell.scenario, set()).add(cell.label)

    assert all(found >= set(CONTENDERS) for found in labels.values())


def test_claims_of_the_host_tier_have_one() -> None:
    for cell in cells():
        if cell.part == "claims":
            assert cell.host == (cell.value in ("routing", "fcfs", "uncached"))


def test_the_quick_design_is_the_middle_of_two_kinds_of_traffic() -> None:
    quick = cells(quick=True)

    assert set(quick) < set(cells())
    assert {cell.traffic for cell in quick} == {AGENTIC, CONVERSATION}
    assert {cell.utilisation for cell in quick} == {0.8}
