"""The matrix on a handful of requests: known trials are not simulated again; its table and verdict."""

from math import inf
from pathlib import Path

import pytest

from loadtest.plan.prfaas.matrix import FLEETS, cases, difference_s, matrix_table, run_matrix, verdict


def nobody(_number: int, _done: int, _total: int) -> None:
    """Ignore progress."""


def test_a_matrix_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    kept = tmp_path / "matrix.jsonl"
    asked = [case for case in cases(12, 2) if case.name.startswith(("scarce", "Poisson, 2.4"))]
    first = run_matrix(asked[:1], [1], 0.0, 1, kept, nobody)
    assert {trial.fleet for trial in first} == {fleet.name for fleet in FLEETS}
    with kept.open("ab") as file:
        file.write(b'{"case":"cut o')
    both = run_matrix(asked, [1], 0.0, 1, kept, nobody)
    assert both[: len(first)] == first
    assert len(both) == 2 * len(first)
    assert both == run_matrix(asked, [1], 0.0, 1, kept, nobody)
    table = matrix_table(both)
    assert [row[0] for row in table.rows] == [case.name for case in asked]
    assert {row[-1] for row in table.rows} == {"as good"}


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in cases(12, 2)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("ours", "expected"),
    [((1.0, 1.1, 1.2), "better"), ((3.0, 3.1, 3.2), "worse"), ((2.0, 2.0, 2.3), "as good")],
)
def test_a_difference_is_told_from_chance_by_the_seeds(ours: tuple[float, ...], expected: str) -> None:
    other = {1: 2.0, 2: 2.1, 3: 2.2}
    assert verdict(*difference_s(dict(zip(other, ours, strict=True)), other)) == expected


def test_one_seed_tells_nothing() -> None:
    assert difference_s({1: 1.0}, {1: 5.0}) == (-inf, inf)
