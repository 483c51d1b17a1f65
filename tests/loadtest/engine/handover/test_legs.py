"""Legs whose KV comes, does not come, or is not wanted any more."""

import asyncio
from typing import Any

import pytest
from fakes.handover_worker import FakeWorker, Heard, served_job

from loadtest.engine.handover.carriers import Load
from loadtest.engine.handover.legs import Counters, DecodeLegs, NotFound, TransferFailed, Transfers


class Case:
    """One decode leg, and how its KV is fetched."""

    def __init__(self, fetch: Any) -> None:
        self.worker = FakeWorker()
        self.counters = Counters()
        self.legs = DecodeLegs(self.worker, self.counters)
        self.heard = Heard()
        self.job = served_job(self.heard)
        self.legs.take(self.job, self.heard, lambda leg: fetch(self, leg))

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def fetched(case: Case, leg: Any) -> None:
    await case.legs.room(leg)


async def test_a_leg_is_delivered_once_it_has_room_and_its_kv() -> None:
    case = Case(fetched)
    await case.settled()
    assert case.worker.delivered == []
    case.worker.admit(case.job)
    await case.settled()

    assert case.worker.delivered == [case.job]
    case.worker.finish(case.job)
    assert case.heard.said == [("finished", case.job, "length")]
    assert not case.legs.abort(case.job)


@pytest.mark.parametrize("error", [TransferFailed("no KV"), NotFound("no engine")])
@pytest.mark.parametrize("submitted", [False, True])
async def test_a_leg_whose_kv_does_not_come_fails_and_leaves_the_scheduler(
    error: Any, submitted: bool
) -> None:
    async def failing(case: Case, leg: Any) -> None:
        if submitted:
            await case.legs.room(leg)
        raise error

    case = Case(failing)
    await case.settled()
    if submitted:
        case.worker.admit(case.job)
        await case.settled()

    assert case.heard.said == [("failed", case.job, 500, str(error))]
    assert case.worker.aborted == ([case.job] if submitted else [])
    found = isinstance(error, NotFound)
    assert (case.counters.unmet, case.counters.failed) == (int(found), int(not found))


@pytest.mark.parametrize("when", ["before", "waiting", "running"])
async def test_an_aborted_leg_is_told_once_and_stops_fetching(when: str) -> None:
    case = Case(fetched)
    if when != "before":
        await case.settled()
    if when == "running":
        case.worker.admit(case.job)
        await case.settled()
    assert case.legs.abort(case.job)
    await case.settled()

    assert case.heard.said == [("finished", case.job, "abort")]
    assert not case.legs.abort(case.job)
    assert case.worker.submitted == ([] if when == "before" else [case.job])


async def test_only_legs_that_the_scheduler_does_not_know_are_aborted_by_id() -> None:
    case = Case(fetched)
    case.legs.abort_id("other")
    await case.settled()
    case.legs.abort_id("r")
    assert case.heard.said == []
    case.legs.close()


async def test_closing_tells_nobody() -> None:
    case = Case(fetched)
    await case.settled()
    case.legs.close()
    await case.settled()

    assert case.heard.said == []


def test_a_transfer_carries_what_the_other_does_not_have_and_says_what_is_ready() -> None:
    """Tokens of 1,000 bytes; a prefill of 2 s per uncached token."""
    loads: list[Load] = []

    class Way:
        def send(self, load: Load, ended: Any) -> Any:
            loads.append(load)

    transfers = Transfers(Way(), lambda tokens: tokens * 1000, lambda new, cached: 2.0 * new, layers=4)
    transfers.pull(1000, 900, print)
    transfers.pull(1000, 1000, print)
    transfers.along(1000, 900, print)
    transfers.along(1000, 1000, print)

    assert loads[:3] == [
        Load(100_000, 100_000, 0.0, 4),
        Load(0, 0, 0.0, 4),
        Load(1_000_000, 900_000, 200.0, 4),
    ]
    assert [load.whole for load in loads] == [True, True, False, False]
