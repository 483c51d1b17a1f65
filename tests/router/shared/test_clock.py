"""Log time goes by the clocks of this machine unless it is given others."""

import time

from router.shared import LogClock


def test_log_time_begins_at_the_wall_clock() -> None:
    before_us = time.time_ns() // 1000
    at_us = LogClock().now_us()

    assert before_us - 1_000_000 <= at_us <= time.time_ns() // 1000 + 1_000_000


def test_other_clocks_may_be_given() -> None:
    assert LogClock(lambda: 7_000, lambda: 5_000_000).now_us() == 5_000
