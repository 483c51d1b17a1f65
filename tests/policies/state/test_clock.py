"""Log time never goes back, is unique, and follows Redis within half a round trip."""

from hypothesis import given
from hypothesis import strategies as st

from policies.state.clock import STEP_US, LogClock, TimeSample

EPOCH_US = 1_700_000_000_000_000


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ns = 5_000_000_000

    def __call__(self) -> int:
        return self.ns

    def pass_us(self, us: int) -> None:
        self.ns += us * 1000


def clock_at(hands: Hands) -> LogClock:
    return LogClock(monotonic_ns=hands, wall_ns=lambda: EPOCH_US * 1000)


def in_contact(hands: Hands) -> LogClock:
    """A clock that has already met a Redis which agrees with the wall clock."""
    clock = clock_at(hands)
    clock.synchronise([exact(hands, EPOCH_US)])
    return clock


def exact(hands: Hands, server_us: int) -> TimeSample:
    return TimeSample(hands.ns, hands.ns, server_us)


def test_before_any_contact_log_time_is_the_wall_clock() -> None:
    hands = Hands()
    clock = clock_at(hands)
    hands.pass_us(250)
    assert clock.now_us() == EPOCH_US + 250


def test_every_call_returns_a_time_of_its_own() -> None:
    clock = clock_at(Hands())
    assert [clock.now_us() - EPOCH_US for _ in range(3)] == [0, 1, 2]


def test_the_sample_with_the_shortest_round_trip_wins() -> None:
    """50 us and 900 us round trips: the shorter one's midpoint defines the offset."""
    hands = Hands()
    clock = clock_at(hands)
    good = TimeSample(hands.ns - 50_000, hands.ns, EPOCH_US + 2 * STEP_US)
    poor = TimeSample(hands.ns - 900_000, hands.ns, EPOCH_US + 9 * STEP_US)
    assert clock.synchronise([poor, good]) == 2 * STEP_US + 25
    assert clock.now_us() == EPOCH_US + 2 * STEP_US + 25


def test_a_small_error_is_absorbed_at_half_speed() -> None:
    """400 us ahead: after 400 us of real time half of it is gone, after 800 us all."""
    hands = Hands()
    clock = in_contact(hands)
    clock.synchronise([exact(hands, EPOCH_US - 400)])
    hands.pass_us(400)
    assert clock.now_us() == EPOCH_US + 200
    hands.pass_us(400)
    assert clock.now_us() == EPOCH_US + 400
    hands.pass_us(400)
    assert clock.now_us() == EPOCH_US + 800


def test_polling_faster_than_a_microsecond_does_not_stop_the_slewing() -> None:
    hands = Hands()
    clock = in_contact(hands)
    clock.synchronise([exact(hands, EPOCH_US + 500)])
    for _ in range(20_000):
        hands.ns += 100
        clock.now_us()
    hands.pass_us(30_000)
    assert clock.now_us() == EPOCH_US + 500 + 32_000


def test_a_log_time_converts_to_monotonic_seconds_of_this_process() -> None:
    hands = Hands()
    clock = clock_at(hands)
    assert clock.monotonic_s(EPOCH_US + 1_500_000) == 5.0 + 1.5


def test_the_first_contact_may_step_backwards_and_later_ones_do_not() -> None:
    """A host whose wall clock is a minute ahead: nothing has left the process before Redis corrects it."""
    hands = Hands()
    clock = clock_at(hands)
    clock.now_us()
    clock.synchronise([exact(hands, EPOCH_US - 60_000_000)])
    corrected = clock.now_us()
    assert corrected == EPOCH_US - 60_000_000
    clock.synchronise([exact(hands, EPOCH_US - 120_000_000)])
    assert clock.now_us() > corrected


def test_a_wall_clock_that_steps_in_a_running_replica_changes_nothing() -> None:
    hands, wall_ns = Hands(), [EPOCH_US * 1000]
    clock = LogClock(monotonic_ns=hands, wall_ns=lambda: wall_ns[0])
    clock.synchronise([exact(hands, EPOCH_US)])
    wall_ns[0] += 60_000_000_000
    hands.pass_us(1000)
    clock.synchronise([exact(hands, EPOCH_US + 1000)])
    assert clock.now_us() == EPOCH_US + 1000


@given(
    st.lists(
        st.tuples(st.integers(0, 3_000_000), st.one_of(st.none(), st.integers(-5_000_000, 5_000_000))),
        max_size=60,
    )
)
def test_log_time_never_goes_back_whatever_the_server_says(steps: list[tuple[int, int | None]]) -> None:
    hands = Hands()
    clock = in_contact(hands)
    last = clock.now_us()
    for passed_us, server_error_us in steps:
        hands.pass_us(passed_us)
        if server_error_us is not None:
            clock.synchronise([exact(hands, clock.now_us() + server_error_us)])
        now = clock.now_us()
        assert now > last
        last = now


def test_a_replica_behind_most_of_its_siblings_steps_to_their_time_and_goes_back_with_them() -> None:
    """A replica starts after Redis' clock stepped a minute forth and back."""
    hands = Hands()
    clock = in_contact(hands)
    assert clock.follow(None) == 0
    assert clock.follow(EPOCH_US + STEP_US) == 0
    assert clock.follow(EPOCH_US + 60 * STEP_US) == 60 * STEP_US
    assert clock.now_us() >= EPOCH_US + 60 * STEP_US
    hands.pass_us(10 * STEP_US)
    assert clock.now_us() == EPOCH_US + 65 * STEP_US, "half as fast as real time"


def test_a_replica_alone_an_hour_ahead_steps_back_once_redis_says_so() -> None:
    hands = Hands()
    clock = in_contact(hands)
    clock.synchronise([exact(hands, EPOCH_US + 3600 * STEP_US)])
    assert clock.follow(EPOCH_US) == 0, "Redis says the same as this replica"
    clock.synchronise([exact(hands, EPOCH_US)])
    assert clock.follow(EPOCH_US + 3600 * STEP_US - 1) == 0, "its siblings say the same as this replica"
    assert clock.follow(EPOCH_US - 100) == -3600 * STEP_US
    assert clock.now_us() == EPOCH_US


def test_before_the_first_contact_no_sibling_is_followed() -> None:
    hands = Hands()
    clock = clock_at(hands)
    assert clock.follow(EPOCH_US + 60 * STEP_US) == 0
