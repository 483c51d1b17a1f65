"""Rooms over real sockets, with schedulers that the test controls.

Links of 1 MB/s: the KV of 130 tokens of 1,000 bytes takes 0.13 s, layer by layer mostly while it is computed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fakes.handover_worker import FakeWorker, Heard, served_job

from loadtest.engine.handover.carriers import Fabric
from loadtest.engine.handover.legs import Transfers
from loadtest.engine.handover.meeting import Meeting
from loadtest.engine.handover.settings import HandoverSettings
from loadtest.engine.handover.sglang import DecodeRooms, PrefillRooms
from loadtest.engine.timing import LinkTiming

TRANSFERS = Transfers(
    Fabric(LinkTiming(1e9)), lambda tokens: 1000 * tokens, lambda new, cached: 0.0, layers=4
)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition knows of no event
            await asyncio.sleep(0.002)


class Pair:
    """A prefill and a decode engine, with one request between them."""

    def __init__(self, **waits: Any) -> None:
        self.prefill_worker, self.decode_worker = FakeWorker(cached_tokens=64), FakeWorker()
        prefill = HandoverSettings(protocol="sglang", part="prefill", **waits)
        decode = HandoverSettings(
            protocol="sglang", part="decode", **{"attempts": 1, "heartbeat_s": 0.01} | waits
        )
        self.prefill = PrefillRooms(prefill, self.prefill_worker, TRANSFERS, 2, 64)
        self.decode = DecodeRooms(decode, self.decode_worker, TRANSFERS)
        self.prefill_heard, self.decode_heard = Heard(), Heard()
        self.prefill_job = served_job(self.prefill_heard, output=20)
        self.decode_job = served_job(self.decode_heard, output=20)

    @property
    def meeting(self) -> Meeting:
        return Meeting("127.0.0.1", self.prefill.port, 2**62 + 1)

    def take_prefill(self) -> None:
        self.prefill.take(self.meeting, self.prefill_job, self.prefill_heard)

    def take_decode(self) -> None:
        self.decode.take(self.meeting, self.decode_job, self.decode_heard)

    async def decode_has_room(self) -> None:
        await until(lambda: self.decode_worker.submitted)
        self.decode_worker.admit(self.decode_job)

    async def meet(self) -> None:
        """Both legs are there and the prefill has begun."""
        self.take_prefill()
        self.take_decode()
        await self.decode_has_room()
        await until(lambda: self.prefill_worker.submitted)


@asynccontextmanager
async def pair(**waits: Any) -> AsyncIterator[Pair]:
    both = Pair(**waits)
    await both.prefill.open("127.0.0.1")
    try:
        yield both
    finally:
        both.prefill.close()
        both.decode.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize("first", ["prefill", "decode"])
async def test_the_legs_of_a_request_meet_whoever_comes_first(first: str) -> None:
    async with pair() as both:
        if first == "prefill":
            both.take_prefill()
        both.take_decode()
        await both.decode_has_room()
        if first == "decode":
            both.take_prefill()
        await until(lambda: both.prefill_worker.submitted)
        assert both.decode_worker.delivered == []
        both.prefill_worker.finish(both.prefill_job)
        await until(lambda: both.decode_worker.delivered)
        both.decode_worker.finish(both.decode_job)

        assert both.prefill_worker.released == [both.prefill_job]
        # One token, for any number that the client wants of the decode engine.
        assert both.prefill_heard.said == [("finished", both.prefill_job, "length")]
        assert both.prefill_job.emitted_tokens == 1
        assert both.decode_heard.said == [("finished", both.decode_job, "length")]
        assert both.decode_job.cached_tokens == 64
        counted = both.decode.counters
        assert (counted.transfer_s.count, counted.received_tokens) == (1, 130)
        assert counted.transfer_bytes.sum == 130_000


async def test_a_prefill_begins_when_its_decode_leg_has_room() -> None:
    async with pair() as both:
        both.take_prefill()
        both.take_decode()
        await until(lambda: both.decode_worker.submitted)
        await asyncio.sleep(0.02)
        assert both.prefill_worker.submitted == []

        await both.decode_has_room()
        await until(lambda: both.prefill_worker.submitted)


async def test_a_decode_engine_finds_no_prefixes_of_its_own() -> None:
    async with pair() as both:
        blocks = both.decode_job.blocks
        both.take_decode()

        assert len(both.decode_job.blocks) == len(blocks)
        assert not set(memoryview(both.decode_job.blocks).cast("Q")) & set(memoryview(blocks).cast("Q"))


async def test_a_prefill_leg_whose_decode_leg_does_not_come_fails() -> None:
    async with pair(bootstrap_s=0.01) as both:
        both.take_prefill()
        await until(lambda: both.prefill_heard.said)

        ((what, _, status, message),) = both.prefill_heard.said
        assert (what, status) == ("failed", 500)
        assert "KVPoll.Bootstrapping" in message
        assert both.prefill_worker.submitted == []
        # The room is free again.
        both.take_decode()
        await both.decode_has_room()
        await until(lambda: both.prefill._rooms)
        both.take_prefill()
        assert both.prefill_worker.submitted == [both.prefill_job]


async def test_a_decode_leg_whose_prefill_leg_does_not_come_hangs_until_it_fails() -> None:
    async with pair(waiting_s=0.05) as both:
        both.take_decode()
        await both.decode_has_room()
        await until(lambda: both.decode_heard.said)

        ((what, _, status, message),) = both.decode_heard.said
        assert (what, status) == ("failed", 500)
        assert "KVPoll.WaitingForInput" in message
        assert both.decode_worker.aborted == [both.decode_job]
        assert both.decode.counters.failed == 1


async def test_a_decode_leg_of_an_aborted_prefill_leg_hangs() -> None:
    async with pair(waiting_s=0.05) as both:
        await both.meet()
        both.prefill.abort(both.prefill_job)
        assert both.prefill_heard.said == [("finished", both.prefill_job, "abort")]
        assert both.decode_heard.said == []

        await until(lambda: both.decode_heard.said)
        assert both.decode_heard.said[0][0] == "failed"


async def test_an_abort_while_the_kv_is_sent_releases_it_once() -> None:
    async with pair() as both:
        await both.meet()
        both.prefill_worker.finish(both.prefill_job)
        assert both.prefill.abort(both.prefill_job)
        assert not both.prefill.abort(both.prefill_job)

        assert both.prefill_worker.released == [both.prefill_job]
        assert both.prefill_heard.said == [("finished", both.prefill_job, "abort")]


@pytest.mark.parametrize("by", ["id", "job"])
async def test_a_leg_that_waits_for_its_room_can_be_aborted(by: str) -> None:
    async with pair() as both:
        both.take_prefill()
        both.take_decode()
        for rooms, job in ((both.prefill, both.prefill_job), (both.decode, both.decode_job)):
            if by == "job":
                rooms.abort(job)  # type: ignore[attr-defined]
            else:
                rooms.abort_id("r")  # type: ignore[attr-defined]

        assert both.prefill_heard.said == [("finished", both.prefill_job, "abort")]
        assert both.decode_heard.said == [("finished", both.decode_job, "abort")]
        assert both.prefill_worker.submitted == both.decode_worker.submitted == []


@pytest.mark.parametrize("held", [False, True])
async def test_a_prefill_leg_learns_that_its_decode_leg_is_gone(held: bool) -> None:
    slow = Transfers(Fabric(LinkTiming(1.0)), lambda tokens: tokens, lambda new, cached: 0.0, layers=1)
    async with pair() as both:
        both.prefill._transfers = slow
        await both.meet()
        if held:
            both.prefill_worker.finish(both.prefill_job)
        both.decode.abort(both.decode_job)
        await until(lambda: both.prefill_heard.said)

        assert both.decode_heard.said == [("finished", both.decode_job, "abort")]
        assert both.prefill_heard.said[0][0] == "failed"
        assert "Aborted by AbortReq" in both.prefill_heard.said[0][3]
        assert both.prefill_worker.released == ([both.prefill_job] if held else [])
        assert both.prefill_worker.aborted == ([] if held else [both.prefill_job])


async def test_a_decode_leg_that_waits_alone_leaves_nothing_behind() -> None:
    async with pair() as both:
        both.take_decode()
        await both.decode_has_room()
        await until(lambda: both.prefill._rooms)
        both.decode.abort(both.decode_job)
        await until(lambda: not both.prefill._rooms)


async def test_no_bootstrap_server_is_an_error() -> None:
    async with pair(attempts=2) as both:
        both.prefill.close()
        both.take_decode()
        await until(lambda: both.decode_heard.said)

        assert both.decode_heard.said[0][2] == 500
        assert "after 2 attempts" in both.decode_heard.said[0][3]
        assert both.decode_worker.submitted == []


async def test_a_prefill_engine_that_dies_is_an_error_after_two_heartbeats() -> None:
    async with pair() as both:
        await both.meet()
        both.prefill.close()
        await until(lambda: both.decode_heard.said)

        assert both.decode_heard.said[0][2] == 500
        assert "Losing connection with prefill instance" in both.decode_heard.said[0][3]


async def test_a_room_that_is_taken_is_an_error() -> None:
    async with pair() as both:
        both.take_prefill()
        second = Heard()
        both.prefill.take(both.meeting, served_job(second), second)

        assert second.said[0][0] == "failed"


async def test_two_decode_legs_cannot_wait_in_one_room() -> None:
    async with pair() as both:
        both.take_decode()
        await both.decode_has_room()
        await until(lambda: both.prefill._rooms)
        heard = Heard()
        job = served_job(heard)
        both.decode.take(both.meeting, job, heard)
        await until(lambda: job in both.decode_worker.submitted)
        both.decode_worker.admit(job)
        await until(lambda: heard.said)

        assert heard.said[0][0] == "failed"
        assert both.decode_heard.said == []


async def test_the_bootstrap_server_answers_what_engines_ask() -> None:
    async with pair() as both, httpx.AsyncClient(base_url=f"http://127.0.0.1:{both.prefill.port}") as client:
        names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
        health = await client.get("/health")
        topology = await client.get("/route", params=dict.fromkeys(names, -1))
        rank = await client.get("/route", params=dict.fromkeys(names, 0))
        missing = await client.get("/route", params={"prefill_dp_rank": 0})
        unknown = await client.get("/nope")

    assert health.text == "OK"
    assert topology.json()["dp_size"] == 2
    assert topology.json()["page_size"] == 64
    assert rank.json() == {"rank_ip": "127.0.0.1", "rank_port": both.prefill.port}
    assert (missing.status_code, unknown.status_code) == (400, 404)
