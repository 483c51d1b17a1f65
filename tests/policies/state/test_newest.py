"""The newest words are the same in any order, and a snapshot carries them."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from policies import Audited, Expire, FleetState, Newest
from policies.fleet.fleet import AUDIT_KEPT

said = st.lists(st.builds(Expire, st.integers(0, 6), st.sampled_from("ab"), st.sampled_from("rst")))


@given(said, st.integers(1, 5), st.randoms(use_true_random=False), st.data())
def test_neither_order_nor_repetition_matters(
    ops: list[Expire], kept: int, random: Random, data: st.DataObject
) -> None:
    """Beside a model: all that was ever said, sorted, and the end of it."""
    shuffled = ops * 2
    random.shuffle(shuffled)
    newest = Newest[Expire](kept)
    changed = []
    for op in shuffled:
        before = newest.revision, list(newest)
        newest.put(op)
        changed.append((newest.revision != before[0]) == (list(newest) != before[1]))
    expected = sorted(set(ops))[-kept:]
    assert list(newest) == expected
    assert len(newest) == len(expected)
    assert all(changed), "the revision tells of every change"
    count = data.draw(st.integers(0, kept + 1))
    assert newest.latest(count) == expected[::-1][:count]


def change(number: int) -> Audited:
    return Audited(number, "one", f"r{number}", "ops", "127.0.0.1", "POST /workers", "a:80", 202)


def test_the_audit_is_bounded_and_travels_with_a_snapshot() -> None:
    """A replica that joins later sees earlier changes; one that missed a part of the log gets the rest."""
    writer, reader = FleetState(), FleetState()
    for number in range(AUDIT_KEPT + 5):
        writer.apply(change(number))
    writer.apply(Expire(7, "one", "r1"))
    reader.apply(change(AUDIT_KEPT + 5))
    reader.restore(writer.snapshot())
    assert [op.at_us for op in reader.audit] == list(range(6, AUDIT_KEPT + 6))
    assert list(reader.expires) == [Expire(7, "one", "r1")]
