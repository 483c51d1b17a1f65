"""The rows of candidates: right after every change, and gathered once between two."""

import msgspec
import numpy as np
import pytest

from policies import (
    ANY_BUCKET,
    FULL_ATTENTION,
    PROFILES,
    Candidates,
    Fitted,
    FleetRules,
    FleetState,
    LengthBuckets,
    Op,
    Placed,
    ServiceModel,
    WorkerPut,
)
from policies.fleet.columns import GATHERED_MAX, REFRESH_US, RETURN_S, TAILS_MAX
from policies.pricing.views import Slots, SlowColumns, Spills
from radix import chain_bytes

SECOND = 1_000_000
START = 1_000 * SECOND


def path(*blocks: int) -> bytes:
    """The path of a prompt made of these blocks; equal beginnings are equal prefixes."""
    return chain_bytes(b"".join(bytes([block]) * 1024 for block in blocks), 7)


def put(worker: str, at_us: int = 1, **more: object) -> WorkerPut:
    return WorkerPut(worker, at_us, "static", f"http://{worker}", **more)  # type: ignore[arg-type]


def placed(request_id: str, worker: str, prompt: bytes, at_us: int = START) -> Placed:
    return Placed(request_id, at_us, worker, "one", 100_000, 300, 500, (prompt,))


def fleet_after(*ops: Op, rules: FleetRules | None = None) -> FleetState:
    fleet = FleetState(rules or FleetRules())
    for op in ops:
        fleet.apply(op)
    return fleet


def candidates(fleet: FleetState, prompt: bytes, now_us: int = START) -> Candidates:
    slots = np.array(sorted(worker.slot for worker in fleet.workers()), dtype=np.intp)
    return fleet.candidates(slots, (prompt,), FULL_ATTENTION, len(prompt) * 32.0, 256.0, now_us)


def rows(fleet: FleetState, slots: Slots, now_us: int = START) -> SlowColumns:
    return fleet.columns.gathered(slots, ANY_BUCKET, now_us)


@pytest.mark.parametrize(("returning", "own"), [(0, 0.0), (8, 0.25), (16, 0.5)])
def test_kappa_is_up_to_half_the_workers_own_as_more_requests_return_to_what_they_left(
    returning: int, own: float
) -> None:
    """1 request/s of 0.1 s on one of two workers: measured are 1/0.9 and 0, and their mean is 0.5/0.9."""
    ops = [
        msgspec.structs.replace(
            placed(f"r{n}", "a:1", path(n), START + n * SECOND), safe_blocks=n + 1 if n < returning else 0
        )
        for n in range(16)
    ]
    fleet = fleet_after(put("a:1"), put("b:1"), *ops)

    view = candidates(fleet, path(0), START + 15 * SECOND)

    assert view.slow.congestion_per_s.tolist() == pytest.approx(
        [(0.5 + own / 2) / 0.9, (0.5 - own / 2) / 0.9]
    )


@pytest.mark.parametrize(("returning", "delayed"), [(0, 0.05), (8, 0.525), (16, 1.0)])
def test_a_later_request_is_delayed_if_it_returns_or_all_the_other_workers_are_busy(
    returning: int, delayed: float
) -> None:
    """Two workers of which one is busy for a tenth of the time: 0.05 is their mean."""
    ops = [
        msgspec.structs.replace(
            placed(f"r{n}", "a:1", path(n), START + n * SECOND), safe_blocks=n + 1 if n < returning else 0
        )
        for n in range(16)
    ]
    fleet = fleet_after(put("a:1"), put("b:1"), *ops)

    view = candidates(fleet, path(0), START + 15 * SECOND)

    assert view.slow.delayed_ratio == pytest.approx(delayed)
    assert view.slow.only(np.array([0])).delayed_ratio == view.slow.delayed_ratio


def test_congestion_follows_arrivals_and_utilisation() -> None:
    """16 requests of 0.1 s in 16 s: 1 / (1 - 0.1) per second."""
    fleet = fleet_after(put("a:1"), *(placed(f"r{n}", "a:1", path(n), START + n * SECOND) for n in range(16)))
    view = candidates(fleet, path(0), START + 15 * SECOND)
    assert view.slow.congestion_per_s[0] == pytest.approx(1 / 0.9)


def test_more_workers_than_rows_make_room() -> None:
    fleet = fleet_after(*(put(f"w:{n}") for n in range(50)), placed("r", "w:49", path(1)))
    view = candidates(fleet, path(1))
    assert len(view) == 50
    assert view.matched_tokens.sum() == 256.0


def test_rows_are_gathered_once_for_the_same_list() -> None:
    fleet = fleet_after(put("a:1"), put("b:1"))
    slots = np.arange(2)
    first = rows(fleet, slots)
    assert rows(fleet, slots, START + REFRESH_US - 1) is first
    assert rows(fleet, np.arange(2)) is not first
    assert rows(fleet, slots, START + REFRESH_US) is not first


def test_a_change_of_prices_is_seen_at_once() -> None:
    fleet = fleet_after(put("a:1"), put("b:1", labels={"worker_class": "other"}))
    slots = np.arange(2)
    rows(fleet, slots)
    fleet.apply(Fitted("other", START, "one", 0.5, 1e-3, 1e5))
    profile = fleet.profile("default")
    after = rows(fleet, slots)
    assert after.a_s.tolist() == [profile.a_s, 0.5]
    assert after.b_s.tolist() == [profile.b_s, 1e-3]
    fleet.columns.price("default", ServiceModel(0.25, 1e-3, 1e5))
    assert rows(fleet, slots).a_s.tolist() == [0.25, 0.5]


def test_what_workers_hold_is_seen_after_a_while_or_when_much_has_changed() -> None:
    fleet = fleet_after(put("a:1"))
    slots = np.arange(1)
    assert rows(fleet, slots).held_tokens.tolist() == [0.0]
    fleet.apply(placed("r", "a:1", path(1, 2)))
    assert rows(fleet, slots).held_tokens.tolist() == [0.0]
    fleet.columns.refresh_soon()
    assert rows(fleet, slots).held_tokens.tolist() == [512.0]
    fleet.apply(placed("s", "a:1", path(3)))
    assert rows(fleet, slots, START + REFRESH_US).held_tokens.tolist() == [768.0]


def test_neighbours_are_selected_by_a_slice() -> None:
    fleet = fleet_after(*(put(f"w:{n}") for n in range(4)))
    assert rows(fleet, np.array([1, 2, 3])).index == slice(1, 4)
    apart = np.array([0, 2])
    assert rows(fleet, apart).index is apart


def test_lists_that_are_kept_are_bounded() -> None:
    fleet = fleet_after(put("a:1"))
    lists = [np.arange(1) for _ in range(GATHERED_MAX + 1)]
    first = rows(fleet, lists[0])
    for slots in lists[:-1]:
        rows(fleet, slots)
    assert rows(fleet, lists[0]) is first
    rows(fleet, lists[-1])
    assert rows(fleet, lists[0]) is not first


def test_hashes_are_of_names_and_not_of_rows() -> None:
    """Replicas know the same workers in another order."""
    names = [f"w:{n}" for n in range(20)]
    fleet, other = fleet_after(*map(put, names)), fleet_after(*map(put, reversed(names)))
    here = fleet.columns.hashes(np.arange(20))
    assert len(set(here.tolist())) == 20
    assert here.tolist() == other.columns.hashes(np.arange(20)[::-1]).tolist()


# Length buckets.


def bucketed(*labels: str) -> FleetState:
    ops = [put(f"w{slot}", labels={"bucket": label}) for slot, label in enumerate(labels)]
    return fleet_after(*ops, rules=FleetRules(buckets=LengthBuckets((1_000, 9_000))))


def spills_of(fleet: FleetState, bucket: int, now_us: int = START) -> Spills | None:
    slots = np.arange(len(fleet.workers()))
    view = fleet.candidates(slots, (), FULL_ATTENTION, 500.0, 256.0, now_us, bucket)
    return view.slow.spills


def test_candidates_know_how_far_they_are_from_the_bucket_and_what_a_visit_costs() -> None:
    """An idle worker is taken to be busy a tenth of the time; one with 16 s of work in the last 16 always."""
    fleet = bucketed("0-1000", "1000-9000", "")
    busy = Placed("1", START, "w1", "one", 16_000_000, 300, 500, (b"",))
    fleet.apply(busy)
    token_s = PROFILES["default"].b_s / PROFILES["default"].c0_tokens
    up, down = spills_of(fleet, 0, START + SECOND), spills_of(fleet, 1, START + SECOND)
    assert up is not None
    assert down is not None
    assert (up.steps.tolist(), down.steps.tolist()) == ([0, 1, 0], [-1, 0, 0])
    assert up.token_s.tolist() == [0.0, pytest.approx(token_s), 0.0]
    assert down.token_s.tolist() == [pytest.approx(token_s / 10), 0.0, 0.0]
    assert (up.middle_tokens[1], down.middle_tokens[0]) == (5_000.0, 500.0)


def test_without_a_bucket_or_a_neighbour_nothing_is_priced() -> None:
    assert spills_of(bucketed("0-1000", ""), ANY_BUCKET) is None
    assert spills_of(bucketed("0-1000", "", "0"), 0) is None
    assert spills_of(bucketed("", ""), ANY_BUCKET) is None


def test_workers_of_one_bucket_share_a_congestion_of_their_own() -> None:
    """Three prefills a second come to the short ones, one in ten to the long one."""
    fleet = bucketed("0", "0", "1")
    for number in range(48):
        fleet.apply(Placed(f"a{number}", START, f"w{number % 2}", "one", 10_000, 300, 500, (b"",)))
    fleet.apply(Placed("b", START, "w2", "one", 10_000, 300, 500, (b"",)))
    view = fleet.candidates(np.arange(3), (), FULL_ATTENTION, 500.0, 256.0, START + SECOND, 0)
    first, second, long = view.slow.congestion_per_s.tolist()
    assert first == second > 10 * long > 0


# The price of evictions.


def evictions(fleet: FleetState, now_us: int = START) -> tuple[list[float], list[float]] | None:
    """Seconds lost per token of the next evictions, relative to b, and tokens that fit."""
    found = candidates(fleet, path(0), now_us).slow
    if found.evictions is None:
        return None
    return (found.evictions.token_s / found.b_s).tolist(), found.evictions.free_tokens.tolist()


def test_without_a_bound_nothing_is_known_of_evictions() -> None:
    fleet = fleet_after(put("a:1"), put("b:1", capacity_tokens=10_240), placed("r", "a:1", path(1)))
    assert evictions(fleet) is None


def test_the_longer_the_next_to_go_was_not_used_the_less_it_is_wanted() -> None:
    """Half after `RETURN_S`, by 1/age beyond; three of four blocks are in use."""
    fleet = fleet_after(
        put("a:1", capacity_tokens=1_024),
        put("b:1"),
        placed("r", "a:1", path(1, 2)),
        placed("s", "a:1", path(3)),
    )
    assert evictions(fleet) == ([pytest.approx(1.0), 0.0], [256.0, 0.0])
    later_us = START + round(RETURN_S * 1e6)
    assert evictions(fleet, later_us) == ([pytest.approx(0.5), 0.0], [256.0, 0.0])
    assert evictions(fleet, START + 9 * (later_us - START)) == ([pytest.approx(0.1), 0.0], [256.0, 0.0])


def test_what_is_used_again_is_no_longer_the_next_to_go() -> None:
    fleet = fleet_after(
        put("a:1", capacity_tokens=512), placed("r", "a:1", path(1)), placed("s", "a:1", path(2))
    )
    late_us = START + round(RETURN_S * 1e6)
    fleet.apply(placed("t", "a:1", path(1), late_us))
    assert evictions(fleet, late_us) == ([pytest.approx(0.5)], [0.0])
    fleet.apply(placed("u", "a:1", path(2), late_us))
    assert evictions(fleet, late_us + REFRESH_US) == ([pytest.approx(1.0, rel=0.01)], [0.0])


def test_so_many_caches_are_looked_at_in_one_refresh() -> None:
    count = TAILS_MAX + 2
    fleet = fleet_after(
        *(put(f"w:{number}", capacity_tokens=512) for number in range(count)),
        *(placed(f"r{number}", f"w:{number}", path(1)) for number in range(count)),
    )
    first, second = evictions(fleet), evictions(fleet, START + REFRESH_US)
    assert first is not None
    assert second is not None
    assert [sum(ratio > 0 for ratio in found[0]) for found in (first, second)] == [TAILS_MAX, count]
