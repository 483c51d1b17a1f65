import asyncio

import pytest

from router.loop_lag import INTERVAL_S, LoopLag


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
    loop_lag = LoopLag(lags.append, lambda: now_s, sleep)
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
    assert INTERVAL_S < 0.1
