"""Digests are equal where the same words are known, in any order and by any way."""

from hypothesis import given
from hypothesis import strategies as st

from policies import (
    Audited,
    CircuitSet,
    FleetState,
    Op,
    Reported,
    SettingsChanged,
    Started,
    WorkerGone,
    WorkerPut,
)
from policies.state.digests import PASSED_MAX, Digest, digest_of
from policies.state.ops import BytesPerToken, CapacityLearned, Circuit, Fitted, tag_of

NAMES = st.sampled_from(["a", "b", "c"])
TIMES = st.integers(1, 9)
OPS = st.one_of(
    st.builds(lambda name, at, by: WorkerPut(f"{name}:1", at, by, f"http://{name}:1"), NAMES, TIMES, NAMES),
    st.builds(lambda name, at, by: WorkerGone(f"{name}:1", at, by), NAMES, TIMES, NAMES),
    st.builds(lambda name, at, by: CircuitSet(f"{name}:1", at, by, Circuit.OPEN, at), NAMES, TIMES, NAMES),
    st.builds(lambda name, at, by: Started(f"{name}:1", at, by, at), NAMES, TIMES, NAMES),
    st.builds(lambda name, at, by: CapacityLearned(f"{name}:1", at, by, 1000), NAMES, TIMES, NAMES),
    st.builds(lambda name, at, by: BytesPerToken(name, at, by, 3.5), NAMES, TIMES, NAMES),
    st.builds(lambda name, at, by: Fitted(name, at, by, 0.1, 0.1, 1000.0), NAMES, TIMES, NAMES),
    st.builds(
        lambda name, at, by: SettingsChanged(f"{name}{at}{by}", at, by, {name: "1"}), NAMES, TIMES, NAMES
    ),
    st.builds(lambda name, at, by: Audited(at, by, f"{name}{at}{by}"), NAMES, TIMES, NAMES),
)


def digests(fleet: FleetState) -> dict[int, int]:
    return {tag: values[-1] for tag, values in fleet.digests().items()}


@given(st.lists(OPS, max_size=20), st.randoms())
def test_digests_follow_from_the_words_and_not_from_their_order(ops: list[Op], random) -> None:  # type: ignore[no-untyped-def]
    one, two = FleetState(), FleetState()
    for op in ops:
        one.apply(op)
    random.shuffle(ops)
    for op in (*ops, *ops):
        two.apply(op)
    assert digests(one) == digests(two)


@given(st.lists(OPS, max_size=20), st.lists(OPS, max_size=20))
def test_who_publishes_all_words_again_makes_another_replica_equal(first: list[Op], second: list[Op]) -> None:
    """Each of them knows only its own words; afterwards both know all."""
    one, two = FleetState(), FleetState()
    for op in first:
        one.apply(op)
    for op in second:
        two.apply(op)
    of_one, of_two = list(one.words(digests(one))), list(two.words(digests(two)))
    for op in of_one:
        two.apply(op)
    for op in of_two:
        one.apply(op)
    assert digests(one) == digests(two)
    assert one.workers() == two.workers() or {w.version for w in one.workers()} == {
        w.version for w in two.workers()
    }


@given(st.lists(OPS, max_size=20))
def test_a_newcomer_has_the_digests_of_the_snapshot_it_merged(ops: list[Op]) -> None:
    one, late = FleetState(), FleetState()
    for op in ops:
        one.apply(op)
    late.restore(one.snapshot())
    assert digests(late) == digests(one)


def test_a_word_that_only_one_knows_changes_the_digest_of_its_kind_alone() -> None:
    one, two = FleetState(), FleetState()
    two.apply(BytesPerToken("m", 1, "b", 3.5))
    different = {tag for tag, value in digests(one).items() if digests(two)[tag] != value}
    assert different == {tag_of(BytesPerToken)}
    assert list(two.words(different)) == [BytesPerToken("m", 1, "b", 3.5)]


def test_what_engines_say_of_their_load_is_not_compared() -> None:
    fleet = FleetState()
    assert tag_of(Reported) not in fleet.digests()
    before = digests(fleet)
    fleet.apply(Reported("a:1", 1, "r"))
    assert digests(fleet) == before


def test_a_digest_remembers_what_it_was_since_it_was_asked() -> None:
    digest = Digest()
    word, newer = ("m", 1, "a"), ("m", 2, "b")
    digest.replace(None, word)
    digest.replace(word, newer)
    assert digest.passed() == [0, digest_of([word]), digest_of([newer])]
    assert digest.passed() == [digest_of([newer])]
    digest.replace(newer, None)
    assert digest.value == 0
    for number in range(3 * PASSED_MAX):
        digest.replace(None, ("m", number, "a"))
    assert len(digest.passed()) == PASSED_MAX + 1
