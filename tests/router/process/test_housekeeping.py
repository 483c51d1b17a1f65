"""A replica's tasks of once a second."""

import pytest
from fakes.process import built, events, running, settings
from fakes.running import until

from policies import Placed, Waiting
from router.app import GatewayProcess


async def test_a_role_that_replicas_share_wins_over_other_settings_and_is_said(
    redis_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first process learned the capacity of its worker, which is newer than any settings."""
    shared = {"namespace": namespace}
    first = GatewayProcess(
        settings(fleet={"prefill": ["http://127.0.0.1:1"]}, shared=shared), redis_url=redis_url
    )
    async with running(first):
        first.registry.change("127.0.0.1:1", capacity_tokens=5)
        await until(lambda: first.shared.status.ready and not first.shared.status.buffered_ops)
        assert "worker.role_kept" not in events(caplog)
        second = GatewayProcess(
            settings(fleet={"decode": ["http://127.0.0.1:1"]}, shared=shared), redis_url=redis_url
        )
        async with running(second):
            await until(lambda: "worker.role_kept" in events(caplog))
            known = second.registry.get("127.0.0.1:1")
            assert known is not None
            assert known.worker.role == "prefill"


async def test_reservations_that_nobody_released_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    process = await built()
    process.fleet.apply(Placed("lost", 1, "a:1", "r9", 1, 1, 1))
    async with running(process):
        await until(lambda: "reservation.expired" in events(caplog))
    assert not process.fleet.loads.requests


async def test_what_others_had_is_given_up_when_redis_is_gone_for_long() -> None:
    """Their releases are not heard: without this no worker would ever have room again."""
    process = await built(shared={"heartbeat_ttl_s": 0.5})
    now_us = process.clock.now_us()
    process.fleet.apply(Placed("theirs", now_us, "w:80", "other", 10_000_000, 1, 1))
    process.fleet.apply(Placed("ours", now_us, "w:80", process.replica, 1, 1, 1))
    process.fleet.apply(Waiting("waits", now_us, "other", now_us, now_us, "m|", "", "normal/", 1, 1, 1))
    async with running(process):
        await until(lambda: len(process.fleet.loads.requests) < 2)
        assert list(process.fleet.loads.requests) == ["ours"]
        assert process.fleet.tickets.count == 0
