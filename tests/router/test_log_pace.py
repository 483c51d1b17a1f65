"""Lines that repeat: one in a minute for each key."""

from router.log_pace import KEYS_MAX, LogPace


def test_a_line_that_repeats_is_written_once_a_minute_and_says_how_many_were_left_out() -> None:
    clock = [0.0]
    pace = LogPace(60.0, lambda: clock[0])
    assert pace.due("a") == 0
    assert [pace.due("a") for _ in range(5)] == 5 * [None]
    assert pace.due("b") == 0
    clock[0] = 59.9
    assert pace.due("a") is None
    clock[0] = 60.0
    assert pace.due("a") == 6
    assert pace.due("a") is None


def test_keys_are_bounded() -> None:
    pace = LogPace(60.0, lambda: 0.0)
    for number in range(KEYS_MAX + 1):
        assert pace.due(str(number)) == 0
    assert pace.due(str(KEYS_MAX)) is None
    assert pace.due("0") == 0
