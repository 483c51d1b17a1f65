"""Of each key the newest word counts, of all keys the newest are kept, whatever their order was."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from policies import BytesPerToken
from policies.state.registers import Registers


def word(model: str, at_us: int, replica: str = "r", value: float = 4.0) -> BytesPerToken:
    return BytesPerToken(model, at_us, replica, value)


def registers(kept: int = 2) -> Registers[BytesPerToken]:
    return Registers(BytesPerToken, kept)


def test_the_newest_word_on_a_key_counts() -> None:
    known = registers()
    assert known.put(word("a", 5, "r1"))
    assert not known.put(word("a", 5, "r1", 9.0))
    assert not known.put(word("a", 4, "r9"))
    assert known.put(word("a", 5, "r2"))
    assert known.get("a") == word("a", 5, "r2")
    assert (known.get("b"), len(known)) == (None, 1)


def test_the_oldest_key_goes_when_there_are_too_many() -> None:
    known = registers(2)
    assert [known.put(word(*said)) for said in (("a", 5), ("b", 6), ("c", 7))] == [True] * 3
    assert [op.model for op in known] == ["b", "c"]
    assert not known.put(word("a", 5)), "it was dropped, and comes back with a newer word only"
    assert not known.put(word("d", 5))
    assert known.put(word("a", 8))
    assert [op.model for op in known] == ["a", "c"]


def test_a_key_that_is_discarded_is_forgotten() -> None:
    known = registers()
    known.put(word("a", 5))
    known.discard("a")
    known.discard("a")
    assert known.put(word("a", 4))


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.sampled_from("xy")), max_size=40),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
)
def test_what_is_kept_does_not_depend_on_the_order(
    said: list[tuple[str, int, str]], random: Random, kept: int
) -> None:
    """The naive model: the newest word of each key, and of these the newest."""
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
