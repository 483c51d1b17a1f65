"""Circuits that are not closed are known by slot, and end with their worker."""

from policies import Circuit, CircuitSet
from policies.state.circuits import Circuits


def word(at_us: int, state: Circuit = Circuit.OPEN) -> CircuitSet:
    return CircuitSet("a:1", at_us, "one", state, at_us + 60)


def test_only_circuits_that_are_not_closed_are_tripped() -> None:
    circuits = Circuits()
    for at_us, state in enumerate((Circuit.OPEN, Circuit.HALF_OPEN, Circuit.OPEN)):
        assert circuits.take(word(at_us, state), 7)
        assert circuits.tripped == {7: word(at_us, state)}
    assert circuits.take(word(9, Circuit.CLOSED), 7)
    assert not circuits.take(word(8), 7)
    assert circuits.tripped == {}


def test_an_ejected_worker_that_is_removed_is_no_longer_tripped() -> None:
    circuits = Circuits()
    circuits.take(word(5), 7)
    circuits.drop("a:1", 7, 4)
    assert circuits.tripped == {7: word(5)}
    circuits.drop("a:1", 7, 5)
    assert circuits.tripped == {}
