"""Reports are columns of differences, and end with their worker."""

from math import inf

from policies import Reported
from policies.state.reports import NEVER_US, Reports


def said(at_us: int, *, running: int = 3, worker: str = "a:1") -> Reported:
    return Reported(worker, at_us, "one", running, 1, 5_000, 64, 2, 4_000)


def test_what_is_reported_is_kept_as_a_difference_to_what_was_in_flight() -> None:
    """3 run and 1 waits there, of which 2 are ours; its requests hold 1,000 tokens more than we gave it."""
    reports = Reports()
    reports.take(said(5), 1)
    assert reports.at_us.tolist() == [NEVER_US, 5.0, *[NEVER_US] * 6]
    assert (reports.foreign_requests[1], reports.extra_tokens[1], reports.running_max[1]) == (
        2.0,
        1_000.0,
        64.0,
    )


def test_what_an_engine_does_not_say_limits_nothing() -> None:
    reports = Reports()
    reports.take(Reported("a:1", 5, "one", inflight_requests=7, inflight_tokens=900), 0)
    assert (reports.foreign_requests[0], reports.extra_tokens[0], reports.running_max[0]) == (0.0, -inf, inf)


def test_the_reports_of_a_removed_worker_are_dropped_unless_they_are_newer() -> None:
    reports = Reports()
    reports.take(said(5), 0)
    reports.drop("a:1", 0, 4)
    assert reports.get("a:1") == said(5)
    reports.drop("a:1", 0, 5)
    assert reports.get("a:1") is None
    assert (reports.at_us[0], reports.foreign_requests[0]) == (NEVER_US, 0.0)
    assert (reports.extra_tokens[0], reports.running_max[0]) == (-inf, inf)


def test_room_for_more_slots_keeps_what_is_there() -> None:
    reports = Reports()
    reports.take(said(5), 7)
    reports.ensure(100)
    reports.take(said(6, worker="b:1"), 100)
    assert reports.at_us[[7, 8, 100]].tolist() == [5.0, NEVER_US, 6.0]
    assert reports.running_max[[7, 8, 100]].tolist() == [64.0, inf, 64.0]
    assert reports.extra_tokens[[7, 8]].tolist() == [1_000.0, -inf]


def test_only_another_bound_of_requests_is_a_change() -> None:
    reports = Reports()
    reports.take(said(5), 0)
    assert reports.running_max_revision == 1
    reports.take(said(6, running=60), 0)
    assert reports.running_max_revision == 1
    reports.take(Reported("a:1", 7, "one"), 0)
    assert reports.running_max_revision == 2
