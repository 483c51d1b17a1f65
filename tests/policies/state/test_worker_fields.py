"""Entries of one worker are merged: the order does not matter, repetition does not, and nothing is lost."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from policies import WorkerPut, decode_ops, encode_op, encode_ops
from policies.state.worker_fields import GENERATION, changed, generation_of, merged

ADDED = WorkerPut("a:80", 5, "static", "http://a", labels={"zone": "a", "rack": "1"})

VALUES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["plain", "decode"]),
        "draining": st.booleans(),
        "capacity_tokens": st.integers(0, 3),
    },
)
NAMES = st.sampled_from(["zone", "rack", "x"])
LABELS = st.none() | st.dictionaries(NAMES, st.sampled_from("ab"), max_size=3)


@st.composite
def entries(draw: st.DrawFn) -> list[WorkerPut]:
    """Entries of replicas: each changes one that is known by then; some start over."""
    known = [ADDED]
    for number in range(draw(st.integers(1, 5))):
        at_us, replica = draw(st.integers(6, 9)), draw(st.sampled_from("abc"))
        if draw(st.integers(0, 5)) == 0:
            known.append(WorkerPut("a:80", at_us, f"{replica}{number}", "http://a", labels={"new": "1"}))
            continue
        base = draw(st.sampled_from(known))
        # A replica says no two things at one time.
        at_us = max(at_us, base.at_us + 1)
        known.append(changed(base, at_us, f"{replica}{number}", draw(VALUES), draw(LABELS)))
    return known


@given(entries())
def test_merging_commutes_associates_and_repeats_harmlessly(said: list[WorkerPut]) -> None:
    ends = []
    for order in list(permutations(said))[:24]:
        end = order[0]
        for each in (*order[1:], *order):
            end = merged(end, each)
        ends.append(end)
    assert all(end == ends[0] for end in ends)
    assert decode_ops(encode_ops([ends[0]])).ops == [ends[0]]


def test_a_change_says_when_what_was_changed_and_carries_the_rest() -> None:
    entry = changed(ADDED, 7, "one", {"role": "decode"}, {"zone": "b"})
    assert (entry.role, entry.labels, entry.capacity_tokens) == ("decode", {"zone": "b"}, 0)
    assert entry.stamps == {GENERATION: (5, "static"), "role": (7, "one")}
    assert entry.label_stamps == {"zone": (7, "one"), "rack": (7, "one")}
    assert generation_of(entry) == generation_of(ADDED) == (5, "static")
    encode_op(entry)


def test_what_an_older_version_says_begins_a_generation() -> None:
    """It takes the newest entry whole, and knows no stamps."""
    new = changed(ADDED, 7, "new", {"draining": True}, None)
    old = WorkerPut("a:80", 8, "old", "http://a", "decode", knows={"": 5, "old": 8})
    assert merged(new, old) == merged(old, new) == old


def test_an_entry_that_says_the_same_again_is_equal() -> None:
    assert merged(ADDED, ADDED) == ADDED
