import asyncio

import pytest

from router.loop_lag import LoopLag


async def test_what_comes_late_is_observed_and_what_comes_early_is_not_late() -> None:
    """Three looks, whose turn comes 5 ms late, in time, and 1 ms early by the coarser clock of the loop."""
    now_s = 100.0
    delays = iter((0.005, 0.0, -0.001))

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        try:
            now_s += seconds + next(delays)
        except StopIteration:
            raise asyncio.CancelledError from None

    lags: list[float] = []
    loop_lag = LoopLag(lags.append, now_s=lambda: now_s, sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await loop_lag.run()

    assert lags == [pytest.approx(0.005), pytest.approx(0.0), 0.0]
    assert loop_lag.worst_s() == max(lags)
    assert loop_lag.worst_s() == 0.0, "since it was last asked"


async def test_looks_go_on_by_the_real_clock() -> None:
    enough = asyncio.Event()
    lags: list[float] = []

    def observe(lag_s: float) -> None:
        lags.append(lag_s)
        if len(lags) == 3:
            enough.set()

    task = asyncio.create_task(LoopLag(observe).run())
    async with asyncio.timeout(60):
        await enough.wait()
    task.cancel()
    assert min(lags) >= 0


async def test_without_requests_in_flight_it_looks_five_times_a_second() -> None:
    now_s = 0.0
    looks: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        looks.append(now_s)
        if now_s > 20.0:
            raise asyncio.CancelledError

    loop_lag = LoopLag(lambda _: None, lambda: now_s >= 10.0, lambda: now_s, sleep)
    with pytest.raises(asyncio.CancelledError):
        await loop_lag.run()
    assert sum(at_s < 10.0 for at_s in looks) == pytest.approx(50, abs=1)
    assert sum(at_s >= 10.0 for at_s in looks) == pytest.approx(100, abs=10)
