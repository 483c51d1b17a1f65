"""The design: complete where it says so."""

from collections import Counter

from loadtest.study.design import (
    AGENTIC,
    OURS,
    PEERS,
    TRAFFIC_KEYS,
    UTILISATIONS,
    VARIANTS,
    cells,
)
from loadtest.study.report import COMPARED
from policies import POLICIES


def test_every_policy_of_the_registry_takes_part() -> None:
    assert {variant.policy for variant in VARIANTS} == set(POLICIES)


def test_peers_are_variants() -> None:
    assert set(PEERS) < {variant.label for variant in VARIANTS}
    assert OURS not in PEERS


def test_no_cell_is_run_twice() -> None:
    assert max(Counter(cells()).values()) == 1


def test_the_main_part_is_the_whole_product_of_traffic_load_and_policy() -> None:
    main = [cell for cell in cells() if cell.part == "main"]

    assert len(main) == len(TRAFFIC_KEYS) * len(UTILISATIONS) * len(VARIANTS)
    assert {(cell.engine, cell.l3, cell.replicas) for cell in main} == {("mimo-v2.5-pro", False, 1)}


def test_other_parts_change_one_factor_of_the_middle() -> None:
    for part, factor in (("dense", "engine"), ("l3", "l3"), ("replicas", "replicas"), ("seeds", "seed")):
        middles = {cell.scenario for cell in cells() if cell.part == "main" and cell.utilisation == 0.8}
        for cell in (cell for cell in cells() if cell.part == part):
            middle = next(middle for middle in middles if middle.traffic == cell.traffic)
            names = ("seed", "engine", "l3", "replicas", "utilisation", "block_tokens", "queue_order")
            assert [name for name in names if getattr(cell, name) != getattr(middle, name)] == [factor]


def test_every_scenario_that_is_compared_has_the_default_and_all_peers() -> None:
    labels: dict[object, set[str]] = {}
    for cell in cells():
        if cell.part in COMPARED:
            labels.setdefault(cell.scenario, set()).add(cell.label)

    assert all(found >= {OURS, *PEERS} for found in labels.values())


def test_the_quick_design_is_the_middle_of_two_kinds_of_traffic() -> None:
    quick = cells(quick=True)

    assert set(quick) < set(cells())
    assert {cell.traffic for cell in quick} >= {AGENTIC}
    assert {cell.utilisation for cell in quick} == {0.8}
