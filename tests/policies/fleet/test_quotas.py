"""Quotas of KV space: counted as the tree holds it, priced beyond a tenant's share, and off without one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    FULL_ATTENTION,
    Candidates,
    Chosen,
    FleetRules,
    FleetState,
    Placed,
    RequestView,
    ServiceModel,
    ShareOf,
    WorkerPut,
    make_policy,
    owner_of,
    place,
)
from policies.fleet.columns import REFRESH_US
from policies.fleet.quotas import STANDINGS_MAX
from policies.pricing.views import Displacing
from policies.state.rendezvous import weights
from radix import chain_bytes
from radix.bounds import SHARED

START = 1_000_000_000
LATER = START + 3_600_000_000
"""Time at which no block used at `START` is expected to be wanted any more."""

BLOCKS = 8
"""Blocks that fit into each worker's cache."""

WORKERS = ("a:1", "b:1", "c:1", "d:1")
SHARES = {"greedy": 0.25, "other": 0.5}


def path(*blocks: int) -> bytes:
    return chain_bytes(b"".join(bytes([block]) * 1024 for block in blocks), 7)


def shares(tenant: str) -> float | None:
    return SHARES.get(tenant, 1.0)


def fleet_of(share_of: ShareOf = shares, capacity_tokens: int = BLOCKS * 256) -> FleetState:
    model = ServiceModel(a_s=0.0, b_s=0.001, c0_tokens=1e9)
    fleet = FleetState(FleetRules(cache_share_of=share_of, default_model=model))
    for worker in WORKERS:
        fleet.apply(WorkerPut(worker, 1, "static", f"http://{worker}", capacity_tokens=capacity_tokens))
    return fleet


def bring(fleet: FleetState, tenant: str, worker: str, *blocks: int, at_us: int = START) -> None:
    """A request of a tenant that is over at once: it leaves its blocks, and no load."""
    owner = owner_of(tenant)
    fleet.apply(Placed(f"{tenant}{blocks}", at_us, worker, "one", 0, 0, 0, (path(*blocks),), owner=owner))


def slots_of(fleet: FleetState) -> np.ndarray:
    return np.array(sorted(worker.slot for worker in fleet.workers()), dtype=np.intp)


def price_of(
    fleet: FleetState, tenant: str, now_us: int = START, slots: np.ndarray | None = None
) -> Displacing | None:
    return fleet.quotas.standing(tenant, slots_of(fleet) if slots is None else slots, now_us)[1]


def order_of(fleet: FleetState, tenant: str) -> list[int]:
    """Slots in a tenant's order."""
    slots = slots_of(fleet)
    return slots[weights(owner_of(tenant), fleet.columns.hashes(slots)).argsort()].tolist()


def seen(fleet: FleetState, tenant: str, prompt: bytes) -> Candidates:
    tokens = len(prompt) * 32.0
    return fleet.candidates(slots_of(fleet), (prompt,), FULL_ATTENTION, tokens, 256.0, LATER, tenant=tenant)


def choice(fleet: FleetState, tenant: str, key: int, prompt: bytes) -> int:
    view = RequestView(key, key, len(prompt) * 32.0, 10.0, 0)
    chosen = place(view, seen(fleet, tenant, prompt), make_policy("expected_cost"))
    assert isinstance(chosen, Chosen)
    return chosen.slot


def fill(fleet: FleetState, *tenants: str) -> None:
    """Fill every cache, block by block with those of the tenants in turn."""
    for number, worker in enumerate(WORKERS):
        for block in range(BLOCKS):
            bring(fleet, tenants[block % len(tenants)], worker, number * BLOCKS + block)


def test_an_owner_is_the_same_number_for_the_same_name_and_nobody_without_a_name() -> None:
    assert owner_of("") == 0
    assert owner_of("acme") == owner_of("acme") != owner_of("acme2")
    assert all(0 < owner_of(str(number)) < SHARED for number in range(1000))


def test_without_quotas_nothing_is_counted() -> None:
    fleet = fleet_of(FleetRules().cache_share_of)
    fill(fleet, "greedy")
    assert fleet.quotas.standing("greedy", slots_of(fleet), START) == (0, None)
    assert seen(fleet, "greedy", path(99)).owner == 0


def test_a_tenant_pays_beyond_its_share_and_not_within() -> None:
    """A quarter of 32 blocks are 8: the ninth is one too many."""
    fleet = fleet_of()
    same = slots_of(fleet)
    for block in range(BLOCKS):
        bring(fleet, "greedy", "a:1", block)
    assert price_of(fleet, "greedy", slots=same) is None
    bring(fleet, "greedy", "b:1", 100)
    assert price_of(fleet, "greedy", slots=same) is None, "the tree is not asked for every request"
    price = price_of(fleet, "greedy", START + REFRESH_US, same)
    assert price is not None
    by_distance = [price.ratio[slot] for slot in order_of(fleet, "greedy")]
    assert by_distance == [0.0, 1.0, 2.0, 3.0]
    assert price.free_tokens[:4].tolist() == [0, 7 * 256, 8 * 256, 8 * 256]
    assert price_of(fleet, "other") is None
    assert price_of(fleet, "unlimited") is None


def test_the_price_is_of_the_tokens_that_do_not_fit() -> None:
    fleet = fleet_of()
    fill(fleet, "greedy")
    bought = seen(fleet, "greedy", path(90, 91)).slow.evictions
    usual = seen(fleet, "unlimited", path(90, 91)).slow.evictions
    assert bought is not None
    assert usual is not None
    last, first = order_of(fleet, "greedy")[-1], order_of(fleet, "greedy")[0]
    assert bought.token_s[last] == pytest.approx(3.0 * 0.001)
    assert bought.token_s[first] == usual.token_s[first]


def test_beyond_its_share_a_tenant_goes_home_and_others_go_anywhere() -> None:
    fleet = fleet_of()
    fill(fleet, "greedy", "unlimited")
    home = order_of(fleet, "greedy")[0]
    prompts = [path(100 + number) for number in range(20)]

    assert {choice(fleet, "greedy", key, prompt) for key, prompt in enumerate(prompts)} == {home}
    assert len({choice(fleet, "unlimited", key, prompt) for key, prompt in enumerate(prompts)}) == 4


def test_a_tenant_beyond_its_share_is_served_elsewhere_when_its_home_is_busy() -> None:
    """It has 0.256 s of prefill, and pays as much again on the next worker."""
    fleet = fleet_of()
    fill(fleet, "greedy", "unlimited")
    home, second = order_of(fleet, "greedy")[:2]
    fleet.apply(Placed("busy", LATER, fleet.at_slot(home).worker_id, "one", 200_000, 200, 200, (b"",)))
    assert choice(fleet, "greedy", 1, path(100)) == home
    fleet.apply(Placed("more", LATER, fleet.at_slot(home).worker_id, "one", 900_000, 900, 900, (b"",)))
    assert choice(fleet, "greedy", 1, path(100)) == second


def test_a_worker_of_unknown_space_has_no_price_and_no_share() -> None:
    fleet = fleet_of(capacity_tokens=0)
    fill(fleet, "greedy")
    assert price_of(fleet, "greedy") is None
    assert fleet.quotas.used_tokens() == ({}, 0.0)


def test_narrowed_candidates_keep_their_price() -> None:
    fleet = fleet_of()
    fill(fleet, "greedy")
    view = seen(fleet, "greedy", path(90))
    last = np.array(order_of(fleet, "greedy")[-1:], dtype=np.intp)
    narrowed = fleet.among(view, last)
    assert narrowed.owner == owner_of("greedy")
    assert narrowed.slow.evictions is not None
    assert narrowed.slow.evictions.token_s.tolist() == pytest.approx([0.003])
    assert narrowed.slow.few[0].evicting == (pytest.approx(0.003), 0.0)


def test_what_is_remembered_is_bounded() -> None:
    fleet = fleet_of(lambda _tenant: 0.5)
    for number in range(STANDINGS_MAX + 5):
        price_of(fleet, f"t{number}")
    assert len(fleet.quotas._standings) <= STANDINGS_MAX


brought = st.tuples(
    st.sampled_from(("greedy", "other", "unlimited")),
    st.sampled_from(WORKERS),
    st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple),
)


@given(st.lists(brought, max_size=20).flatmap(lambda ops: st.tuples(st.just(ops), st.permutations(ops))))
def test_used_tokens_are_those_of_a_naive_count_in_any_order_and_after_a_snapshot(
    orders: tuple[list[tuple[str, str, tuple[int, ...]]], list[tuple[str, str, tuple[int, ...]]]],
) -> None:
    """Blocks that several tenants brought count for none. Every placement has a time of its own."""
    times = {op: START + number for number, op in enumerate(orders[0])}
    held: dict[str, set[tuple[int, ...]]] = {worker: set() for worker in WORKERS}
    owners: dict[tuple[int, ...], set[int]] = {}
    for tenant, worker, blocks in orders[0]:
        for stop in range(1, len(blocks) + 1):
            held[worker].add(blocks[:stop])
            owners.setdefault(blocks[:stop], set()).add(owner_of(tenant))
    naive = Counter(
        min(owners[block]) for blocks in held.values() for block in blocks if len(owners[block]) == 1
    )
    expected = {owner: count * 256.0 for owner, count in naive.items()}

    for ops in orders:
        fleet = fleet_of(capacity_tokens=100 * 256)
        for tenant, worker, blocks in ops:
            bring(fleet, tenant, worker, *blocks, at_us=times[tenant, worker, blocks])
        newcomer = fleet_of(capacity_tokens=100 * 256)
        newcomer.restore(fleet.snapshot())
        for each in (fleet, newcomer):
            assert each.quotas.used_tokens() == (expected, 4 * 100 * 256.0)
