"""The benchmark of limits counts rightly, and its replicas do share a limit."""

import time

import pytest

from loadtest.bench.limits import LimitReport, Row, plans_of, run, table_of

SECOND_US = 1_000_000


def report(*granted_s: float, waits_us: list[int] | None = None) -> LimitReport:
    return LimitReport(10, [int(at_s * SECOND_US) for at_s in granted_s], waits_us or [], 3, 1, 0.5)


def test_the_busiest_minute_may_begin_anywhere() -> None:
    """Two at 50 s, two at 100 s: no clock minute has four, but 60 s do."""
    row = Row("x", 4, 2, [report(50, 100), report(50, 100)])
    assert row.busiest == 1
    assert row.used == 0.5


def test_a_minute_ends_before_its_last_moment() -> None:
    assert Row("x", 1, 1, [report(0, 60)]).busiest == 1
    assert Row("x", 1, 1, [report(0, 59.9)]).busiest == 2
    assert Row("x", 1, 1, []).busiest == 0


def test_waits_are_of_all_replicas() -> None:
    row = Row("x", 1, 1, [report(0, waits_us=[1000, 3000]), report(waits_us=[2000])])
    assert (row.wait_ms(0.5), row.wait_ms(1.0)) == (2.0, 3.0)
    assert row.rounds_per_request == 6
    assert table_of([row]).row_count == 1


@pytest.mark.deep
async def test_two_replicas_share_a_limit(redis_url: str, namespace: str) -> None:
    """Requests that a busy machine let wait for too long are decided by shares: some may be too many."""
    plans = plans_of(redis_url, namespace, 30, [60.0, 60.0], 1.0, seed=1)
    assert plans[0].start_unix_s > time.time()
    reports = await run(redis_url, plans)
    alone = sum(report.alone for report in reports)
    assert sum(report.asked for report in reports) > 60
    assert 30 <= sum(len(report.granted_us) for report in reports) <= 30 + alone
