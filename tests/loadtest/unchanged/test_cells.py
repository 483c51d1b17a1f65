"""The cells whose decisions are compared."""

from pathlib import Path

from loadtest.unchanged.cells import KINDS, cells, decided, readable
from policies import POLICIES


def test_every_policy_decides_on_every_kind_of_traffic() -> None:
    """12 policies, 5 kinds, 1 and 8 replicas, with and without a queue, 3 seeds."""
    wanted = cells()

    assert len({cell.name for cell in wanted}) == len(wanted) == 12 * 5 * 2 * 2 * 3
    assert {cell.policy for cell in wanted} == set(POLICIES)


def test_recorded_traffic_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    assert {cell.kind for cell in readable(cells(), tmp_path)} == {
        name for name, kind in KINDS.items() if not kind.file
    }


def test_a_cell_that_is_known_is_not_simulated_again(tmp_path: Path) -> None:
    one, other = cells(quick=True)[:2]

    assert [name for name, _ in decided([one, other], {one.name: "known"}, tmp_path)] == [other.name]
