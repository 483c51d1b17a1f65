"""Changed settings beside their definition: of all that was ever said, the newest word on each key counts."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import FleetState, Overrides, SettingsChanged
from policies.state import overrides
from policies.state.overrides import version_of

KEYS = ("placement.policy", "queue.size", "roles.mode")


def change(at_us: int, replica: str = "one", change_id: str = "", **values: str | None) -> SettingsChanged:
    """Keys are written with ``__`` for the dot."""
    named = {key.replace("__", "."): value for key, value in values.items()}
    return SettingsChanged(change_id or f"{replica}{at_us}", at_us, replica, named)


drawn_changes = st.lists(
    st.builds(
        lambda at_us, replica, values: SettingsChanged(f"{replica}{at_us}", at_us, replica, values),
        st.integers(0, 8),
        st.sampled_from(("one", "two")),
        st.dictionaries(st.sampled_from(KEYS), st.none() | st.sampled_from(("1", "2")), min_size=1),
    ),
    unique_by=version_of,
    max_size=12,
)


def naive_values(changes: list[SettingsChanged]) -> dict[str, str]:
    """The newest word on each key, of all of them at once."""
    newest: dict[str, str | None] = {}
    for each in sorted(changes, key=version_of):
        newest |= each.values
    return {key: value for key, value in newest.items() if value is not None}


@pytest.fixture(autouse=True)
def short_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """This bound is so small that a handful of changes runs over."""
    monkeypatch.setattr(overrides, "HISTORY_MAX", 4)


@given(drawn_changes, st.randoms(use_true_random=False), st.integers(0, 24))
def test_any_order_and_any_repetition_mean_the_same(
    changes: list[SettingsChanged], random: Random, snapshot_at: int
) -> None:
    """The rule also holds with a snapshot in between, from which another replica goes on."""
    shuffled = changes * 2
    random.shuffle(shuffled)
    told = FleetState()
    for each in shuffled[:snapshot_at]:
        told.apply(each)
    state = FleetState()
    state.restore(told.snapshot(), "one", missed=True)
    for each in shuffled[snapshot_at:]:
        state.apply(each)

    in_order = sorted(changes, key=version_of)
    assert state.overrides.values() == naive_values(changes)
    assert list(state.overrides.history) == in_order[-4:]
    for number, each in enumerate(in_order):
        kept = number >= len(in_order) - 4
        assert state.overrides.before(each.change_id) == (naive_values(in_order[:number]) if kept else None)


@given(drawn_changes, drawn_changes)
def test_the_digest_tells_states_apart(some: list[SettingsChanged], others: list[SettingsChanged]) -> None:
    states = []
    for changes in (some, others):
        state = Overrides()
        for each in changes:
            state.apply(each)
        states.append(state)
    newest = [{key: version_of(said) for key, said in state.newest.items()} for state in states]
    assert (states[0].digest() == states[1].digest()) == (newest[0] == newest[1])


def test_a_change_that_takes_a_value_back_is_remembered_against_an_older_one() -> None:
    """The log may bring the older one later."""
    state = Overrides()
    state.apply(change(2, queue__size=None))
    state.apply(change(1, queue__size="5"))
    assert state.values() == {}
    assert state.before("one2") == {"queue.size": "5"}


def test_of_two_replicas_in_the_same_moment_one_wins_everywhere() -> None:
    said = [change(5, "one", queue__size="1"), change(5, "two", queue__size="2")]
    for order in (said, said[::-1]):
        state = Overrides()
        for each in order:
            state.apply(each)
        assert state.values() == {"queue.size": "2"}
        assert list(state.history) == said


def test_what_is_said_next_comes_after_all_that_is_known() -> None:
    """A replica whose clock is behind would otherwise change nothing."""
    state = Overrides()
    assert state.next_us(7) == 7
    state.apply(change(100, queue__size="1"))
    assert state.next_us(7) == 101
    assert state.next_us(200) == 200


def test_every_change_is_counted_and_no_repetition() -> None:
    state = Overrides()
    for each in (change(1, queue__size="1"), change(2, queue__size="1"), change(1, queue__size="1")):
        state.apply(each)
    assert state.revision == 2
