"""The newest word of each subject counts; the newest of all subjects are kept, in any order of arrival."""

from itertools import permutations
from random import Random

import pytest
from fakes.words import word as word_of
from hypothesis import given
from hypothesis import strategies as st

from policies import BytesPerToken, CircuitSet, FleetState, LinkMeasured, Op, WorkerGone
from policies.state.ops import REGISTERS, Register
from policies.state.registers import KEPT_MAX, AllRegisters, Registers, WorkerRegisters
from policies.state.slot_registers import Circuits
from radix import WORKERS_MAX


def word(model: str, at_us: int, replica: str = "r", value: float = 4.0) -> BytesPerToken:
    return BytesPerToken(model, at_us, replica, value)


def registers(kept: int = 2) -> Registers[BytesPerToken]:
    return Registers(BytesPerToken, kept)


def test_the_newest_word_on_a_subject_counts() -> None:
    known = registers()
    assert known.put(word("a", 5, "r1"))
    assert not known.put(word("a", 5, "r1", 9.0))
    assert not known.put(word("a", 4, "r9"))
    assert known.put(word("a", 5, "r2"))
    assert known.get("a") == word("a", 5, "r2")
    assert (known.get("b"), len(known)) == (None, 1)


def test_the_oldest_subject_goes_when_there_are_too_many() -> None:
    known = registers(2)
    assert [known.put(word(*said)) for said in (("a", 5), ("b", 6), ("c", 7))] == [True] * 3
    assert [op.model for op in known] == ["b", "c"]
    assert not known.put(word("a", 5)), "it was dropped, and comes back with a newer word only"
    assert not known.put(word("d", 5))
    assert known.put(word("a", 8))
    assert [op.model for op in known] == ["a", "c"]


def test_a_subject_that_is_discarded_is_forgotten() -> None:
    known = registers()
    known.put(word("a", 5))
    known.discard("a")
    known.discard("a")
    assert known.put(word("a", 4))


def test_every_change_is_counted_and_nothing_else() -> None:
    known = registers(2)
    for said in (word("a", 5), word("b", 6)):
        known.put(said)
    assert known.revision == 2
    known.put(word("a", 5))
    known.put(word("d", 1))
    known.discard("x")
    assert known.revision == 2
    known.discard("a")
    assert known.revision == 3


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.sampled_from("xy")), max_size=40),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
)
def test_what_is_kept_does_not_depend_on_the_order(
    said: list[tuple[str, int, str]], random: Random, kept: int
) -> None:
    """The naive model: the newest word of each subject, and of these the newest."""
    newest: dict[str, BytesPerToken] = {}
    for model, at_us, replica in said:
        op = word(model, at_us, replica)
        if model not in newest or (at_us, replica) > (newest[model].at_us, newest[model].replica):
            newest[model] = op
    best = sorted(newest.values(), key=lambda op: (op.at_us, op.replica, op.model))[-kept:]
    shuffled = said * 2
    random.shuffle(shuffled)
    known = registers(kept)
    for one in shuffled:
        known.put(word(*one))
    assert list(known) == sorted(best, key=lambda op: op.model)


# Every register, as it is declared.

every_register = pytest.mark.parametrize("kind", REGISTERS, ids=lambda kind: kind.__name__)


def folded(*ops: Op) -> FleetState:
    fleet = FleetState()
    for op in ops:
        fleet.apply(op)
    return fleet


@every_register
def test_the_newest_word_counts_in_any_order_and_for_a_newcomer(kind: type[Register]) -> None:
    older, later, newest = (
        word_of(kind, 0, 5, "two", 1),
        word_of(kind, 0, 6, "one", 2),
        word_of(kind, 0, 6, "two", 3),
    )
    other = word_of(kind, 1, 4, "one", 4)
    known = [other, newest] if kind.by else [newest]
    for order in permutations((older, later, newest, other)):
        fleet = folded(*order, *order)
        newcomer = FleetState()
        newcomer.restore(fleet.snapshot())
        for one in (fleet, newcomer):
            assert sorted(one.registers.of(kind), key=lambda op: op.at_us) == known
            assert one.registers.newest(kind, newest.key) == newest


@every_register
def test_a_removal_of_its_worker_ends_what_was_said_before_if_that_is_declared(kind: type[Register]) -> None:
    said, later = word_of(kind, 0, 5, "one", 1), word_of(kind, 0, 7, "one", 2)
    gone = WorkerGone(said.key, 6, "one")
    for order in permutations((said, gone)):
        known = folded(*order).registers.newest(kind, said.key)
        assert known == (None if kind.ends_with_worker else said)
    for order in permutations((said, gone, later)):
        assert folded(*order).registers.newest(kind, said.key) == later


def test_words_about_the_worker_in_a_slot_end_when_it_is_removed() -> None:
    known = WorkerRegisters(CircuitSet)
    said = word_of(CircuitSet, 0, 5, "one", 1)
    assert known.take(said, 0)
    assert not known.take(said, 0)
    known.drop(said.key, 0, 4)
    assert [*known] == [said]
    known.drop(said.key, 0, 5)
    assert [*known] == []


def test_as_many_workers_are_kept_as_there_may_be() -> None:
    kept = {kind.by == "worker": Registers(kind)._kept for kind in REGISTERS}
    assert kept == {True: WORKERS_MAX, False: KEPT_MAX}


def test_what_a_part_keeps_is_listed_first() -> None:
    circuits = Circuits()
    every = AllRegisters(circuits)
    assert every.of(CircuitSet) is circuits
    assert [each.kind for each in every] == [
        CircuitSet,
        *(kind for kind in REGISTERS if kind is not CircuitSet),
    ]
    assert every.newest(LinkMeasured, "a>b") is None
