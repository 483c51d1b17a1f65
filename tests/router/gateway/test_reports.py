"""Reports of requests."""

import pytest
from fakes.gateway import Bench, chat

from router.gateway.reports import KEPT, WINDOW_S, Refusals


def test_the_log_line_of_a_request_can_be_turned_off() -> None:
    bench = Bench(observability={"request_logs": False})
    bench.start(chat())
    bench.upstream.answer()
    assert bench.log == []
    assert bench.gateway.sending.inflight == 0


@pytest.mark.parametrize(("ratio", "lines"), [(1.0, 8), (0.5, 4), (0.25, 2), (0.0, 0)])
def test_so_many_of_the_completed_requests_are_logged_and_all_others(ratio: float, lines: int) -> None:
    bench = Bench(observability={"request_log_ratio": ratio})
    for _ in range(8):
        bench.start(chat())
        bench.upstream.answer()
    assert len(bench.log) == lines
    exchange, client = bench.start(chat())
    client.left = True
    exchange.client_left()
    assert len(bench.log) == lines + 1


class Clock:
    """Log time under control of a test."""

    us = 0

    def __call__(self) -> int:
        return self.us


def test_the_latest_come_first_and_old_ones_are_forgotten() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for number in range(KEPT + 5):
        clock.us = number * 1_000_000
        refusals.add("queue_full", f"low/{number}", 2.5)
    latest = refusals.described()["latest"]
    assert [refusal["flow"] for refusal in latest] == [f"low/{n}" for n in range(KEPT + 4, 4, -1)]
    assert latest[1] == {"age_s": 1.0, "code": "queue_full", "flow": f"low/{KEPT + 3}", "retry_after_s": 2.5}


def test_counts_are_of_the_last_minute() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    refusals.add("queue_full")
    clock.us = 30_000_000
    refusals.add("queue_full")
    refusals.add("request_expired")
    assert refusals.described()["last_minute"] == {"queue_full": 2, "request_expired": 1}
    clock.us = WINDOW_S * 1_000_000
    assert refusals.described()["last_minute"] == {"queue_full": 1, "request_expired": 1}
    clock.us = 1000 * 1_000_000
    assert refusals.described()["last_minute"] == {}


def test_what_is_not_known_is_not_made_up() -> None:
    refusals = Refusals(Clock())
    refusals.add("too_many_requests")
    assert refusals.described()["latest"] == [
        {"age_s": 0.0, "code": "too_many_requests", "flow": None, "retry_after_s": None}
    ]
