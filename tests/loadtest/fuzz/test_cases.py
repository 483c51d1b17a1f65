"""A case is a function of the seed and its number."""

from loadtest.fuzz.actions import Wire
from loadtest.fuzz.cases import GENERATORS, Case, case


def test_a_case_depends_on_its_seed_and_number_alone() -> None:
    assert case(7, 12) == case(7, 12)
    assert case(7, 12) != case(8, 12)
    assert case(7, 13) != case(7, 12)


def test_all_kinds_are_made_or_those_that_are_asked_for() -> None:
    assert {case(1, number).kind for number in range(300)} == set(GENERATORS)
    assert {case(1, number, ("pods", "heads")).kind for number in range(50)} == {"pods", "heads"}


def test_a_case_says_how_it_is_played_again_and_what_it_writes() -> None:
    made = Case(7, 12, "heads", Wire((b"GET / HTTP/1.1\r\n" * 100,)))
    assert str(made) == "heads case 12 of seed 7"
    assert made.replay == "python -m loadtest.fuzz --seed 7 --only 12"
    assert len(made.shown(100)) < 150
    assert made.shown(10_000).count("GET / HTTP/1.1") == 100
