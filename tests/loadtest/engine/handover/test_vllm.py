"""NIXL and Mooncake over real sockets, with schedulers that the test controls.

The KV of 130 tokens of 1,000 bytes takes 0.13 ms on these links.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fakes.handover_worker import FakeWorker, Heard, served_job

from loadtest.engine.errors import RequestRefused
from loadtest.engine.faults import Faults
from loadtest.engine.handover.carriers import Fabric
from loadtest.engine.handover.legs import Transfers
from loadtest.engine.handover.peer import PeerRefused, call
from loadtest.engine.handover.settings import HandoverSettings
from loadtest.engine.handover.vllm import KvTransfers
from loadtest.engine.kv_encoding import CacheGroup
from loadtest.engine.timing import LinkTiming


def transfers(bytes_per_s: float) -> Transfers:
    way = Fabric(LinkTiming(bytes_per_s))
    return Transfers(way, lambda tokens: 1000 * tokens, lambda new, cached: 0.0, layers=4)


TRANSFERS = transfers(1e9)
SLOW = transfers(1.0)
GROUPS = [
    CacheGroup("full", "full_attention"),
    CacheGroup("sliding_window", "sliding_window", 64),
    CacheGroup("linear", "mamba"),
]
ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition knows of no event
            await asyncio.sleep(0.002)


class Engine:
    """One engine with a scheduler of its own and the last request's leg."""

    def __init__(
        self, protocol: Any, part: Any, transfers: Transfers = TRANSFERS, cached: int = 0, **more: Any
    ) -> None:
        self.worker = FakeWorker(cached)
        settings = HandoverSettings(protocol=protocol, part=part, engine_id=f"{part}-0", **more)
        self.side = KvTransfers(settings, self.worker, transfers, Faults(), GROUPS, 64)
        self.heard = Heard()

    def take(self, params: Any, **job: Any) -> Any:
        """Take up a request of one job, which may be served here alone."""
        served = served_job(self.heard, **job)
        (plan,) = self.side.plan({"kv_transfer_params": params}, ["r1"])
        if plan is not None:
            self.side.take(plan, served, self.heard)
        return served if plan is not None else None

    async def room(self, job: Any) -> None:
        await until(lambda: job in self.worker.submitted)
        self.worker.admit(job)


@asynccontextmanager
async def engines(*given: Engine) -> AsyncIterator[None]:
    for engine in given:
        await engine.side.open("127.0.0.1")
    try:
        yield
    finally:
        for engine in given:
            engine.side.close()
        await asyncio.sleep(0)


def nixl(**more: Any) -> tuple[Engine, Engine]:
    return Engine("nixl", "prefill", **more), Engine("nixl", "decode", cached=64)


def prefilled(engine: Engine, **job: Any) -> Any:
    """The params that a prefill leg answers with."""
    leg = engine.take(ASK, **job)
    engine.worker.finish(leg)
    return leg


async def test_kv_is_pulled_as_the_params_say() -> None:
    prefill, decode = nixl()
    async with engines(prefill, decode):
        leg = prefilled(prefill)
        params = leg.transfer_params
        assert prefill.heard.said == [("finished", leg, "length")]
        assert prefill.worker.released == []
        job = decode.take(params, output=20)
        await decode.room(job)
        await until(lambda: decode.worker.delivered)

        assert prefill.worker.released == [leg]
        # Blocks already here are not transferred; the reported count is that of the other engine's cache.
        assert job.cached_tokens == 0
        counted = decode.side.counters
        assert (counted.transfer_s.count, counted.received_tokens) == (1, 66)
        assert counted.transfer_bytes.sum == 66_000
        assert prefill.side.counters.expired == 0


async def test_params_have_the_fields_of_the_real_ones() -> None:
    prefill, _ = nixl()
    async with engines(prefill):
        params = prefilled(prefill, id_="cmpl-abc").transfer_params

    # Three blocks, the window's one and one to be sure, one state.
    assert [len(ids) for ids in params["remote_block_ids"]] == [3, 2, 1]
    assert len({number for ids in params["remote_block_ids"] for number in ids}) == 6
    assert params | {"remote_block_ids": None} == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": None,
        "remote_engine_id": "prefill-0",
        "remote_request_id": "cmpl-abc",
        "remote_host": "127.0.0.1",
        "remote_port": prefill.side.port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 130,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }


async def test_kv_that_nobody_pulls_is_released_when_its_lease_ends() -> None:
    prefill, _ = nixl(lease_s=0.02)
    async with engines(prefill):
        leg = prefilled(prefill)
        await until(lambda: prefill.worker.released)

        assert prefill.worker.released == [leg]
        assert prefill.side.counters.expired == 1


async def test_a_decode_leg_that_waits_for_room_renews_the_lease() -> None:
    prefill = Engine("nixl", "prefill", lease_s=60)
    decode = Engine("nixl", "decode", lease_s=0.03)
    async with engines(prefill, decode):
        leg = prefilled(prefill)
        kept = prefill.side._kept._kept[leg.id]
        for _ in range(2):
            lease = kept.lease
            job = decode.take(leg.transfer_params)
            await until(lambda lease=lease: kept.lease is not lease)
            assert lease.cancelled()
        await decode.room(job)
        await until(lambda: decode.worker.delivered)

        assert prefill.worker.released == [leg]


async def test_an_aborted_decode_leg_lets_the_kv_go() -> None:
    prefill, decode = nixl()
    async with engines(prefill, decode):
        leg = prefilled(prefill)
        job = decode.take(leg.transfer_params)
        await until(lambda: decode.worker.submitted)
        decode.side.abort(job)
        await until(lambda: prefill.worker.released)

        assert decode.heard.said == [("finished", job, "abort")]


async def test_a_pull_that_is_aborted_lets_the_kv_go() -> None:
    prefill, decode = nixl(transfers=SLOW)
    async with engines(prefill, decode):
        leg = prefilled(prefill)
        job = decode.take(leg.transfer_params)
        await decode.room(job)
        await until(lambda: prefill.side._kept._asked)
        decode.side.abort(job)
        await until(lambda: prefill.worker.released)

        assert decode.worker.delivered == []


@pytest.mark.parametrize("wrong", [{"remote_engine_id": "other"}, {"remote_port": 1}])
async def test_an_engine_that_is_not_there_is_an_error(wrong: Any) -> None:
    prefill, decode = nixl(lease_s=2)
    async with engines(prefill, decode):
        leg = prefilled(prefill)
        job = decode.take(leg.transfer_params | wrong)
        await decode.room(job)
        await until(lambda: decode.heard.said)

        assert decode.heard.said == [("failed", job, 500, "Internal server error")]
        assert decode.worker.aborted == [job]
        assert decode.side.counters.failed == 1
        # The kept KV stays until its lease is over.
        assert prefill.worker.released == []
        await until(lambda: prefill.worker.released)


async def test_an_engine_is_known_by_its_id_after_the_first_hand_shake() -> None:
    prefill, decode = nixl()
    async with engines(prefill, decode):
        for wrong in ({}, {"remote_port": 1}):
            leg = prefilled(prefill)
            job = decode.take(leg.transfer_params | wrong)
            await decode.room(job)
            await until(lambda job=job: job in decode.worker.delivered)


async def test_a_wrong_request_id_gets_its_kv_and_leaves_it_there() -> None:
    prefill, decode = nixl(lease_s=2)
    async with engines(prefill, decode):
        leg = prefilled(prefill)
        job = decode.take(leg.transfer_params | {"remote_request_id": "nope"})
        await decode.room(job)
        await until(lambda: decode.worker.delivered)

        assert prefill.worker.released == []
        await until(lambda: prefill.worker.released)
        assert prefill.side.counters.expired == 1


async def test_an_engine_that_dies_is_an_error() -> None:
    prefill, decode = nixl(transfers=SLOW)
    async with engines(prefill, decode):
        job = decode.take(prefilled(prefill).transfer_params)
        await decode.room(job)
        await until(lambda: prefill.side._kept._asked)
        prefill.side.close()
        await until(lambda: decode.heard.said)

        assert decode.heard.said[0][:3] == ("failed", job, 500)


async def test_an_aborted_prefill_keeps_nothing() -> None:
    prefill, _ = nixl()
    async with engines(prefill):
        leg = prefill.take(ASK)
        prefill.side.abort(leg)

        assert prefill.heard.said == [("finished", leg, "abort")]
        assert leg.transfer_params is None
        assert not prefill.side._kept._kept


async def test_a_prefill_leg_without_max_tokens_1_answers_in_full() -> None:
    prefill, decode = nixl()
    async with engines(prefill, decode):
        leg = prefilled(prefill, output=20)
        assert leg.role == "plain"
        assert leg.emitted_tokens == 20
        job = decode.take(leg.transfer_params)
        await decode.room(job)
        await until(lambda: decode.worker.delivered)

        assert prefill.worker.released == []


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"do_remote_prefill": False},
        {"do_remote_prefill": True},
        {
            "do_remote_prefill": True,
            "remote_block_ids": [],
            "remote_engine_id": "e",
            "remote_request_id": "r",
        },
    ],
)
def test_without_params_an_engine_computes_the_prompt_itself(params: Any) -> None:
    _, decode = nixl()

    assert decode.take(params) is None


def test_params_that_are_no_object_are_refused() -> None:
    with pytest.raises(RequestRefused):
        nixl()[1].take([1])


def mooncake(**more: Any) -> tuple[Engine, Engine]:
    return Engine("mooncake", "prefill", **more), Engine("mooncake", "decode")


async def mooncake_params(prefill: Engine, transfer_id: str = "t1") -> Any:
    """Parameters that a router learns before it sends the decode leg."""
    (entry,) = (await call("127.0.0.1", prefill.side.port, "/query")).values()
    assert entry["worker_addr"]["0"]["0"] == f"127.0.0.1:{prefill.side.port}"
    return {
        "do_remote_prefill": True,
        "transfer_id": transfer_id,
        "remote_engine_id": entry["engine_id"],
        "remote_bootstrap_addr": f"http://127.0.0.1:{prefill.side.port}",
    }


@pytest.mark.parametrize("early", [False, True])
async def test_with_mooncake_a_decode_leg_may_ask_before_the_prefill_is_done(early: bool) -> None:
    prefill, decode = mooncake()
    async with engines(prefill, decode):
        leg = prefill.take(ASK | {"transfer_id": "t1"})
        if not early:
            prefill.worker.finish(leg)
        job = decode.take(await mooncake_params(prefill))
        await decode.room(job)
        if early:
            await until(lambda: prefill.side._kept._asked)
            prefill.worker.finish(leg)
        await until(lambda: decode.worker.delivered)

        assert prefill.worker.released == [leg]
        # The router made the ids up; the answer has nothing to add.
        assert leg.transfer_params is None


async def test_with_mooncake_a_decode_leg_that_gives_up_early_leaves_nothing() -> None:
    prefill, decode = mooncake(waiting_s=0.1)
    async with engines(prefill, decode):
        leg = prefill.take(ASK | {"transfer_id": "t1"})
        job = decode.take(await mooncake_params(prefill))
        await decode.room(job)
        await until(lambda: prefill.side._kept._asked)
        decode.side.abort(job)
        await until(lambda: not prefill.side._kept._asked)
        prefill.worker.finish(leg)
        await until(lambda: prefill.worker.released)

        assert prefill.side.counters.expired == 1


async def test_with_mooncake_an_unknown_engine_or_bootstrap_is_an_error() -> None:
    prefill, decode = mooncake()
    async with engines(prefill, decode):
        params = await mooncake_params(prefill)
        for wrong in ({"remote_engine_id": "other"}, {"remote_bootstrap_addr": "127.0.0.1:1"}):
            decode.heard.said.clear()
            job = decode.take(params | wrong)
            await decode.room(job)
            await until(lambda: decode.heard.said)
            assert decode.heard.said == [("failed", job, 500, "Internal server error")]


async def test_with_mooncake_kv_that_never_comes_is_an_error() -> None:
    prefill = Engine("mooncake", "prefill")
    decode = Engine("mooncake", "decode", waiting_s=0.05)
    async with engines(prefill, decode):
        job = decode.take(await mooncake_params(prefill))
        await decode.room(job)
        await until(lambda: decode.heard.said)

        assert decode.heard.said[0][:3] == ("failed", job, 500)


def test_with_mooncake_a_leg_at_the_wrong_engine_is_an_error() -> None:
    prefill, decode = mooncake()
    for engine, params in ((prefill, {"do_remote_prefill": True}), (decode, {"do_remote_decode": True})):
        with pytest.raises(RequestRefused) as refused:
            engine.take(params)
        assert refused.value.status == 500


def test_with_mooncake_a_prefill_without_a_transfer_is_like_any_other() -> None:
    assert mooncake()[0].take(ASK) is None


async def test_two_requests_of_one_name_are_both_released() -> None:
    prefill, _ = nixl()
    async with engines(prefill):
        legs = [prefilled(prefill) for _ in range(2)]
        await until(lambda: prefill.worker.released)

        assert prefill.worker.released == legs[:1]


async def test_the_side_channel_knows_its_own_paths_only() -> None:
    prefill, _ = nixl()
    async with engines(prefill):
        with pytest.raises(PeerRefused):
            await call("127.0.0.1", prefill.side.port, "/query")
        assert await call("127.0.0.1", prefill.side.port, "/handshake", {}) == {"engine_id": "prefill-0"}
