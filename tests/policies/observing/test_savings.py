"""Beside the naive sums of everybody."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from policies.observing.savings import MODEL_CHARS_MAX, Savings, SavingsWindow

HOUR_US = 3_600_000_000
T0 = 1_000_000_000_000


def add(sketch: Savings, key: int, saved: int, *, reported: int | None = None, at_us: int = T0) -> None:
    sketch.add([(key, "m", 1000, saved, reported)], at_us)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), max_size=300),
    st.integers(1, 8),
    st.integers(1, 50),
)
def test_what_is_listed_saved_what_is_said_and_who_is_not_saved_little(
    added: list[tuple[int, int]], entries_max: int, batch: int
) -> None:
    sketch, true = Savings(entries_max), Counter[int]()
    for start in range(0, len(added), batch):
        sketch.add([(key, "m", 1000, saved, None) for key, saved in added[start : start + batch]], T0)
    for key, saved in added:
        true[key] += saved

    assert len(sketch.entries) <= 2 * entries_max
    assert sketch.requests == len(added)
    assert sketch.total_tokens == true.total()
    assert sketch.floor * entries_max <= true.total()
    for key, saved in true.items():
        entry = sketch.entries.get(key)
        if entry is None:
            assert saved <= sketch.floor
        else:
            assert entry.saved_tokens <= saved <= entry.saved_tokens + entry.error
            assert entry.error <= sketch.floor


def test_who_saves_most_stays_however_many_save_little() -> None:
    sketch = Savings(entries_max=4)
    for number in range(1000):
        add(sketch, 1, 100)
        add(sketch, 10 + number, 10)
    assert sketch.entries[1].saved_tokens == 100_000
    assert sketch.entries[1].error == 0


def test_prompts_that_save_nothing_are_not_listed_but_count_for_one_that_is() -> None:
    sketch = Savings()
    add(sketch, 1, 0)
    assert not sketch.entries
    add(sketch, 1, 256)
    add(sketch, 1, 0)
    assert (sketch.entries[1].requests, sketch.requests) == (2, 3)


def test_what_the_engine_reports_counts_and_a_prediction_only_where_it_is_silent() -> None:
    sketch = Savings()
    add(sketch, 1, 512, reported=300)
    add(sketch, 1, 512)
    entry = sketch.entries[1]
    assert (entry.saved_tokens, entry.predicted_tokens) == (812, 1024)
    assert (entry.reported_tokens, entry.reported_requests, entry.prompt_tokens) == (300, 1, 2000)


def test_no_name_takes_more_room_than_it_should() -> None:
    sketch = Savings()
    sketch.add([(1, "m" * 10_000, 1, 1, 1)], T0)
    assert len(sketch.entries[1].model) == MODEL_CHARS_MAX


def test_this_hour_and_the_last_one_count_and_what_is_older_does_not() -> None:
    window = SavingsWindow()
    add(window.sketch(T0), 1, 100, at_us=T0)
    add(window.sketch(T0 + HOUR_US), 1, 10, at_us=T0 + HOUR_US)
    add(window.sketch(T0 + HOUR_US), 2, 50, at_us=T0 + HOUR_US)

    assert [(entry.key, entry.saved_tokens) for entry in window.top(9)] == [(1, 110), (2, 50)]
    assert (window.since_us, window.requests, window.total_tokens) == (T0, 3, 160)

    window.sketch(T0 + 2 * HOUR_US)
    assert [(entry.key, entry.saved_tokens) for entry in window.top(9)] == [(2, 50), (1, 10)]
    assert window.since_us == T0 + HOUR_US

    window.sketch(T0 + 9 * HOUR_US)
    assert window.top(9) == []


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30), st.integers(0, HOUR_US // 3)), max_size=200)
)
def test_over_two_hours_the_bounds_hold_as_well(added: list[tuple[int, int, int]]) -> None:
    window, at_us = SavingsWindow(entries_max=3), T0
    all_added: list[tuple[int, int, int]] = []
    for key, saved, later_us in added:
        at_us += later_us
        add(window.sketch(at_us), key, saved, at_us=at_us)
        all_added.append((key, saved, at_us))
    true = Counter[int]()
    for key, saved, when_us in all_added:
        true[key] += saved if when_us >= window.since_us else 0

    listed = {entry.key: entry for entry in window.top(100)}
    for key, saved in true.items():
        if key in listed:
            assert listed[key].saved_tokens <= saved <= listed[key].saved_tokens + listed[key].error
        else:
            assert saved <= window.floor
