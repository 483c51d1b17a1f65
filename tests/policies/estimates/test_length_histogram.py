"""Recent requests by length, in any order of arrival."""

from hypothesis import given
from hypothesis import strategies as st

from policies.estimates.length_histogram import (
    MINUTE_US,
    ROW_TOKENS_MAX,
    ROWS,
    WINDOW_MINUTES,
    LengthHistogram,
    row_of,
)

Added = tuple[int, int, int]

MINUTES = st.integers(1_000, 1_040)
ADDED = st.lists(st.tuples(MINUTES, st.integers(1, 1 << 24), st.integers(0, 10**7)), max_size=30)


def told(added: list[Added]) -> LengthHistogram:
    histogram = LengthHistogram()
    for minute, tokens, service_us in added:
        histogram.add(minute * MINUTE_US, tokens, service_us)
    return histogram


@given(st.integers(1, 1 << 23))
def test_a_length_is_in_the_first_row_that_is_long_enough(tokens: int) -> None:
    row = row_of(tokens)
    assert tokens <= ROW_TOKENS_MAX[row]
    assert row == 0 or ROW_TOKENS_MAX[row - 1] < tokens


def test_powers_of_two_are_bounds_and_what_is_longer_than_all_counts_as_the_longest() -> None:
    assert {1 << bits for bits in range(10, 24)} <= set(ROW_TOKENS_MAX)
    assert (len(ROW_TOKENS_MAX), row_of(1 << 30)) == (ROWS, ROWS - 1)


@given(ADDED, st.randoms(use_true_random=False))
def test_the_order_does_not_matter(added: list[Added], chance: object) -> None:
    shuffled = list(added)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert told(shuffled).dump() == told(added).dump()


@given(ADDED, st.lists(MINUTES, max_size=5))
def test_a_question_changes_nothing(added: list[Added], asked: list[int]) -> None:
    """Replicas that were asked hold the same as others, and answer the next question equally."""
    histogram, untouched = told(added), told(added)
    for minute in asked:
        histogram.demand(minute * MINUTE_US)
    assert histogram.dump() == untouched.dump()


@given(ADDED, MINUTES)
def test_a_later_question_counts_what_is_left_in_its_window(added: list[Added], now: int) -> None:
    newest = max([now, *(minute for minute, _, _ in added)])
    late = [one for one in added if newest - one[0] < WINDOW_MINUTES]
    assert told(added).demand(now * MINUTE_US).requests.sum() == len(late)


@given(ADDED)
def test_only_the_last_minutes_count(added: list[Added]) -> None:
    """The definition: everything in the window of the newest minute."""
    newest = max((minute for minute, _, _ in added), default=0)
    late = [one for one in added if newest - one[0] < WINDOW_MINUTES]
    demand = told(added).demand(newest * MINUTE_US)
    requests, service_s, window_s = demand.requests, demand.service_s, demand.window_s
    assert requests.sum() == len(late)
    assert round(service_s.sum() * 1e6) == sum(service_us for _, _, service_us in late)
    assert window_s == max([60.0 * (newest - minute) for minute, _, _ in late] + [1.0])
    for _, tokens, _ in late:
        assert requests[row_of(tokens)] > 0


@given(ADDED, st.integers(0, 30), st.integers(0, 30))
def test_merging_what_others_saw_loses_nothing_and_counts_nothing_twice(
    added: list[Added], mine: int, theirs: int
) -> None:
    """One saw the first so many, the other the first so many: together the longer of both."""
    mine, theirs = min(mine, len(added)), min(theirs, len(added))
    one, other = told(added[:mine]), told(added[:theirs])
    one.merge(*other.dump())
    one.merge(*other.dump())
    assert one.dump() == told(added[: max(mine, theirs)]).dump()
