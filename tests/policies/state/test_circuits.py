"""The newest word about a circuit wins, in any order, and ends with its worker."""

from itertools import permutations

from policies import Circuit, CircuitSet
from policies.state.circuits import Circuits


def word(at_us: int, state: Circuit = Circuit.OPEN, replica: str = "one") -> CircuitSet:
    return CircuitSet("a:1", at_us, replica, state, at_us + 60)


def test_the_newest_word_wins_in_any_order() -> None:
    words = [word(1), word(2, Circuit.HALF_OPEN), word(2, Circuit.CLOSED, "two")]
    for order in permutations(words):
        circuits = Circuits()
        for op in (*order, *order):
            circuits.take(op, 0)
        assert circuits.get("a:1") == words[2]
        assert circuits.tripped == {}
        assert [*circuits] == [words[2]]


def test_only_circuits_that_are_not_closed_are_tripped() -> None:
    circuits = Circuits()
    for at_us, state in enumerate((Circuit.OPEN, Circuit.HALF_OPEN, Circuit.OPEN)):
        assert circuits.take(word(at_us, state), 7)
        assert circuits.tripped == {7: word(at_us, state)}
    assert circuits.take(word(9, Circuit.CLOSED), 7)
    assert circuits.tripped == {}


def test_every_change_is_counted_and_nothing_else() -> None:
    circuits = Circuits()
    circuits.take(word(5), 0)
    assert not circuits.take(word(5), 0)
    assert not circuits.take(word(4), 0)
    assert circuits.revision == 1
    circuits.drop("a:1", 0, 4)
    circuits.drop("b:1", 1, 9)
    assert circuits.revision == 1
    circuits.drop("a:1", 0, 5)
    assert circuits.revision == 2
    assert (circuits.get("a:1"), circuits.tripped, [*circuits]) == (None, {}, [])
