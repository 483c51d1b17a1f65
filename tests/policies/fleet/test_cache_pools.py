"""A shared pool's blocks are known once they were computed, and priced for all its workers.

Prompts of whole blocks of 256 tokens; ``a:1`` and ``b:1`` share the pool ``east``, ``c:1`` shares nothing.
"""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    FULL_ATTENTION,
    CachePool,
    Candidates,
    Chosen,
    FetchTime,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    Left,
    Op,
    Placed,
    RequestView,
    WorkerPut,
    make_policy,
    place,
)
from policies.fleet.cache_pools import PoolMembers
from policies.scoring.placement import Reason
from radix import chain_bytes

START = 1_000_000_000
WORKERS = ("a:1", "b:1", "c:1")
RULES = FleetRules(pools={"east": CachePool(fetch_base_s=0.01, fetch_tokens_per_s=1e6)})


def path(blocks: int) -> bytes:
    return chain_bytes(b"".join(bytes([block]) * 1024 for block in range(blocks)), 7)


def placed(request_id: str = "r", worker: str = "a:1", blocks: int = 8) -> Placed:
    return Placed(
        request_id, START, worker, "one", 100_000, 256 * blocks, 256 * blocks, (path(blocks),), False
    )


def fleet_after(*ops: Op, rules: FleetRules = RULES) -> FleetState:
    fleet = FleetState(rules)
    for worker in WORKERS:
        labels = {} if worker == "c:1" else {"cache_pool": "east"}
        fleet.apply(WorkerPut(worker, 1, "static", f"http://{worker}", labels=labels))
    for op in ops:
        fleet.apply(op)
    return fleet


def seen(fleet: FleetState, blocks: int = 8) -> Candidates:
    slots = np.array([worker.slot for worker in fleet.workers()], dtype=np.intp)
    return fleet.candidates(slots, (path(blocks),), FULL_ATTENTION, 256.0 * blocks, 256.0, START + 10_000_000)


def pooled_blocks(fleet: FleetState, blocks: int = 8) -> int:
    pool = fleet.pool_of("a:1")
    assert pool is not None
    match = fleet.tree.match(path(blocks), FULL_ATTENTION)
    slot = fleet._slot(pool)
    return match.matched_at(slot)


def test_a_prompt_is_in_the_pool_when_its_prefill_is_over() -> None:
    fleet = fleet_after(placed())
    assert pooled_blocks(fleet) == 0

    fleet.apply(FirstToken("r", START + 5))
    assert pooled_blocks(fleet) == 8


def test_a_request_that_ended_without_a_token_leaves_nothing_in_the_pool() -> None:
    assert pooled_blocks(fleet_after(placed(), Finished("r", START + 5))) == 0
    assert pooled_blocks(fleet_after(Finished("r", START + 5), placed())) == 0


def test_an_end_that_tells_of_the_first_token_fills_the_pool_too() -> None:
    assert pooled_blocks(fleet_after(placed(), Finished("r", START + 5, START + 4))) == 8


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_operations_does_not_matter(order: tuple[int, ...]) -> None:
    ops = (placed(), FirstToken("r", START + 5), Finished("r", START + 9))

    assert pooled_blocks(fleet_after(*(ops[each] for each in order), *ops)) == 8


def test_a_worker_without_a_pool_writes_none_and_fetches_none() -> None:
    fleet = fleet_after(placed(worker="c:1"), FirstToken("r", START + 5))

    assert fleet.pool_of("c:1") is None
    assert pooled_blocks(fleet) == 0
    assert [timing.fetched_tokens for timing in seen(fleet).timings(2048.0, seen(fleet).slow.few)] == [
        0,
        0,
        0,
    ]


def test_the_pool_named_any_is_shared_by_workers_without_a_label() -> None:
    fleet = fleet_after(
        placed(worker="c:1"), FirstToken("r", START + 5), rules=FleetRules(pools={"*": CachePool()})
    )

    assert fleet.pool_of("c:1") == "pool/*"
    assert fleet.pool_of("a:1") is None


def test_a_worker_fetches_what_another_has_computed() -> None:
    """2,048 tokens: 10 + 2 ms to fetch, 157 ms to compute, and there is a queue at the one that has them."""
    busy = [placed(f"more {n}", blocks=1) for n in range(9)]
    fleet = fleet_after(placed(), FirstToken("r", START + 5), *busy)
    candidates = seen(fleet)

    chosen = place(RequestView(7, 7, 2048.0, 1.0, 0), candidates, make_policy("min_ttft"))

    assert isinstance(chosen, Chosen)
    assert fleet.at_slot(chosen.slot).worker_id == "b:1"
    assert (chosen.reason, chosen.safe_tokens, chosen.fetched_tokens) == (Reason.FETCHED, 2048, 2048)
    assert chosen.estimated_ttft_s == pytest.approx(0.01 + 2048 / 1e6 + fleet.service_model("default").a_s)


def test_a_pool_is_no_worker() -> None:
    fleet = fleet_after(placed(), FirstToken("r", START + 5))

    assert [worker.worker_id for worker in fleet.workers()] == list(WORKERS)
    fleet.collect(START + 10**12)
    assert pooled_blocks(fleet) == 8


def test_a_pool_holds_no_more_than_it_can() -> None:
    rules = FleetRules(pools={"east": CachePool(capacity_tokens=3 * 256)})

    assert pooled_blocks(fleet_after(placed(), FirstToken("r", START + 5), rules=rules)) == 3


def test_a_newcomer_knows_what_the_pool_holds() -> None:
    fleet, newcomer = fleet_after(placed(), FirstToken("r", START + 5)), FleetState(RULES)

    newcomer.restore(fleet.snapshot())

    assert pooled_blocks(newcomer) == 8


@pytest.mark.parametrize("end", [FirstToken("r", START + 5), Finished("r", START + 5, START + 5)])
def test_a_newcomer_hears_of_a_prefill_that_ends_after_it_came(end: Op) -> None:
    one, late = fleet_after(placed()), FleetState(RULES)
    late.restore(one.snapshot(), "late")
    for fleet in (one, late):
        fleet.apply(end)
    assert late.tree.match(path(8)).matched.tolist() == one.tree.match(path(8)).matched.tolist()
    assert late.loads.inflight_requests.tolist() == one.loads.inflight_requests.tolist()
    now_us = START + 1_000_000
    assert late.loads.rates(now_us)[0].tolist() == one.loads.rates(now_us)[0].tolist()


def test_requests_that_never_end_are_not_waited_for() -> None:
    fleet = fleet_after(placed(), Left("one", START + 1))
    fleet.collect(START + 1_000_000)

    assert not fleet._pool_writes._waiting


@given(
    st.permutations(
        [placed("r"), FirstToken("r", START + 5), placed("s", "b:1", 4), Finished("s", START + 6)]
    )
)
def test_what_the_pool_holds_depends_on_what_was_said_only(ops: list[Op]) -> None:
    assert pooled_blocks(fleet_after(*ops)) == 8


def test_members_are_columns_in_the_order_that_is_asked_for() -> None:
    members = PoolMembers()
    assert members.columns([0, 1, 2]) is None
    members.join(1, 7, CachePool(fetch_base_s=0.01, fetch_tokens_per_s=1e6, fetch_tokens_min=64))
    pools = members.columns([2, 1])
    assert pools is not None
    assert pools.slots.tolist() == [2, 7]
    assert (pools.base_s.tolist(), pools.token_s.tolist()) == ([0.0, 0.01], [0.0, 1e-6])
    assert pools.tokens_min.tolist() == [np.inf, 64.0]
    assert pools.patience.tolist() == [np.inf, 1.0]
    assert members.columns([0, 2]) is None
    members.leave(1)
    assert members.columns([2, 1]) is None


@pytest.mark.parametrize(
    ("policy", "patience"), [("best_effort", 0.0), ("timeout", 1.0), ("wait_complete", np.inf)]
)
def test_a_pool_has_the_patience_of_its_engines(policy: Any, patience: float) -> None:
    members = PoolMembers()
    members.join(0, 1, CachePool(prefetch_policy=policy))
    pools = members.columns([0])
    assert pools is not None
    assert pools.patience.tolist() == [patience]


@pytest.mark.parametrize(("factor", "token_s"), [(3.0, 3e-6), (0.0, 1e-6), (1e9, 16e-6)])
def test_a_fetch_is_priced_by_what_was_learned_of_the_pool(factor: float, token_s: float) -> None:
    """Within bounds, and a newcomer knows it; an older word changes nothing."""
    fleet = fleet_after(placed(), FetchTime("pool/east", START, "r", factor))
    seen(fleet)
    fleet.apply(FetchTime("pool/east", START - 1, "r", 7.0))
    newcomer = FleetState(RULES)
    newcomer.restore(fleet.snapshot())
    for one in (fleet, newcomer):
        pools = seen(one).slow.pools
        assert pools is not None
        assert pools.token_s[0] == pytest.approx(token_s)
