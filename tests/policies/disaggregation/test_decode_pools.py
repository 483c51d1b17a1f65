"""Decode workers of each prefill worker, and the links between them."""

import numpy as np

from policies import (
    ALONE,
    FleetRules,
    FleetState,
    LengthBuckets,
    LinkRules,
    Pairing,
    Partners,
    WorkerPut,
)
from policies.disaggregation.decode_pools import decode_pools


def fleet_of(*workers: tuple[str, dict[str, str]], rules: FleetRules | None = None) -> FleetState:
    fleet = FleetState(rules or FleetRules())
    for number, (role, labels) in enumerate(workers):
        fleet.apply(WorkerPut(f"w{number}", 1, "r", f"http://w{number}", role, labels=labels))
    return fleet


def test_prefill_workers_keep_to_decode_workers_of_their_site_or_take_a_link() -> None:
    fleet = fleet_of(
        ("prefill", {}),
        ("prefill", {"site": "far"}),
        ("prefill", {"site": "nowhere"}),
        ("decode", {}),
        ("plain", {}),
        rules=FleetRules(site="here", links={"far>here": LinkRules(8.0)}),
    )
    pairing = Pairing(
        np.array([0, 1, 2, 4]), np.array([0, 0, 0, ALONE]), (Partners("sglang", np.array([3])),)
    )
    found = decode_pools(fleet, pairing)
    near, far, lost = (found.pools[number] for number in found.pool_of[:3])
    assert [(pool.link, pool.slots.tolist()) for pool in (near, far, lost)] == [
        ("", [3]),
        ("far>here", [3]),
        ("", []),
    ]
    assert found.pool_of[4] == ALONE
    assert found.splits[:5].tolist() == [1, 1, 1, 0, 0]


def test_a_pair_is_of_one_length_bucket() -> None:
    """A decode worker without one takes part in each."""
    fleet = fleet_of(
        ("prefill", {"bucket": "0-64K"}),
        ("prefill", {"bucket": "64K-256K"}),
        ("decode", {"bucket": "0-64K"}),
        ("decode", {"bucket": "64K-256K"}),
        ("decode", {}),
        rules=FleetRules(buckets=LengthBuckets()),
    )
    pairing = Pairing(np.arange(2), np.zeros(2, dtype=np.intp), (Partners("sglang", np.array([2, 3, 4])),))
    found = decode_pools(fleet, pairing)
    assert [found.pools[number].slots.tolist() for number in found.pool_of[:2]] == [[2, 4], [3, 4]]


def test_decode_workers_that_take_requests_whole_are_known() -> None:
    fleet = fleet_of(("prefill", {}), ("decode", {}), ("plain", {}))
    pairing = Pairing(np.arange(3), np.array([0, ALONE, ALONE]), (Partners("nixl", np.array([1])),))
    assert decode_pools(fleet, pairing).decodes[:3].tolist() == [0, 1, 0]
