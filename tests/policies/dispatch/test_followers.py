"""Requests that would compute blocks of a running prefill again, and whether waiting for it is sooner.

Blocks of 256 tokens; an engine of 10,000 tokens a second.
"""

from typing import Any

import pytest

from policies import Finished, FirstToken, FleetState, Left, Op, Placed, ServiceModel, WorkerPut
from policies.dispatch.followers import HANDOVER_S, repeated_blocks, waits_for_leader
from radix import chain_bytes

NOW_US = 1_000_000_000
MODEL = ServiceModel(a_s=0.0, b_s=1e-4, c0_tokens=1e12)


def path(text: str) -> bytes:
    """A block per letter."""
    return chain_bytes(text.encode(), root=1, block_bytes=1)


def placed(name: str, text: str, safe_blocks: int = 0, **changes: Any) -> Placed:
    given: dict[str, Any] = {"at_us": NOW_US, "worker": "w:1", "replica": "one", "service_us": 1_000_000}
    given |= {"uncached_tokens": 256, "context_tokens": 256, "paths": (path(text),)}
    return Placed(name, safe_blocks=safe_blocks, **{**given, **changes})


def fleet_of(*ops: Op) -> FleetState:
    fleet = FleetState()
    fleet.apply(WorkerPut("w:1", 1, "one", "http://w:1"))
    for op in ops:
        fleet.apply(op)
    return fleet


def repeated(
    fleet: FleetState, text: str, safe: int, step: float = 100.0, after_s: float = 0.0, slot: int = 0
) -> float:
    """Blocks that a follower with these would compute again."""
    now_us = NOW_US + round(after_s * 1e6)
    return repeated_blocks(fleet.loads, slot, path(text), safe, step, now_us)


BUSY = placed("busy", "zzz", at_us=NOW_US - 1)
"""Something else, which is being prefilled first."""


@pytest.mark.parametrize(
    ("before", "leader_safe", "step", "blocks"),
    [
        ((), 0, 100, 0),  # at its only step: the follower joins the next one
        ((BUSY,), 0, 100, 8),  # both wait for the same step
        ((BUSY,), 6, 100, 2),  # the same, of a leader that found six
        ((BUSY,), 8, 100, 0),  # the blocks that it found are not computed
        ((), 0, 3, 2),  # steps of 3, 3, 3 and 1: the last is free for two blocks more, it has blocks 9 and 10
        ((BUSY,), 0, 3, 2),
        ((), 0, 5, 3),  # steps of 5 and 5: the second begins with block 5
        ((), 2, 4, 2),  # steps of 4 and 4 behind the two found
    ],
)
def test_what_the_last_step_of_a_leader_computes_is_computed_again(
    before: tuple[Op, ...], leader_safe: int, step: float, blocks: float
) -> None:
    """The leader has ten blocks, the follower eight of them and two others."""
    fleet = fleet_of(*before, placed("leader", "abcdefghij", leader_safe))
    if step == 3:
        # The follower shares nothing of the last step, block 10 alone.
        assert repeated(fleet, "abcdefghxy", 8, step) == 0
        assert repeated(fleet, "abcdefghij", 10, step) == 1
    else:
        assert repeated(fleet, "abcdefghxy", 8, step) == blocks


def test_what_a_follower_does_not_find_anyway_is_not_computed_again() -> None:
    """A window lets it continue after five of eight shared blocks."""
    fleet = fleet_of(BUSY, placed("leader", "abcdefghij"))
    assert repeated(fleet, "abcdefghxy", 5) == 5
    assert repeated(fleet, "abcdefghxy", 0) == 0


def test_who_shares_only_what_the_leader_found_follows_nobody() -> None:
    fleet = fleet_of(BUSY, placed("leader", "abcdefghij", 4))
    assert repeated(fleet, "abcdxxxxxx", 4) == 0
    assert repeated(fleet, "abcd", 4) == 0
    assert repeated(fleet, "abcde", 5) == 1


def test_of_several_leaders_the_one_that_costs_most_counts() -> None:
    fleet = fleet_of(BUSY, placed("first", "abcdef"), placed("second", "abcdefgh", 6))
    assert repeated(fleet, "abcdefgh", 8) == 6
    fleet.apply(FirstToken("first", NOW_US))
    assert repeated(fleet, "abcdefgh", 8) == 2


def test_another_worker_has_other_leaders() -> None:
    fleet = fleet_of(BUSY, placed("leader", "abc"), WorkerPut("v:1", 1, "one", "http://v:1"))
    assert repeated(fleet, "abc", 3) == 3
    assert repeated(fleet, "abc", 3, slot=1) == 0


END = {
    "first token": FirstToken("leader", NOW_US),
    "end": Finished("leader", NOW_US),
    "end with its first token": Finished("leader", NOW_US, NOW_US),
    "its replica left": Left("two", NOW_US),
}


@pytest.mark.parametrize("end", END.values(), ids=END)
@pytest.mark.parametrize("late", [False, True])
def test_nobody_follows_who_is_done_in_whatever_order_that_is_heard(end: Op, late: bool) -> None:
    leader = placed("leader", "abc", replica="two")
    fleet = fleet_of(BUSY, *((end, leader) if late else (leader, end)))
    assert repeated(fleet, "abc", 3) == 0
    assert [name for name, _ in fleet.loads.prefills(0)] == ["busy"]


def test_the_prompt_of_a_request_is_kept_no_longer_than_it_prefills() -> None:
    fleet = fleet_of(placed("leader", "abc"))
    request = fleet.loads.requests["leader"]
    assert request.path == path("abc")
    fleet.apply(FirstToken("leader", NOW_US))
    assert request.path == b""


def test_a_batch_or_a_prompt_that_was_all_found_leads_nobody() -> None:
    fleet = fleet_of(BUSY, placed("batch", "", paths=(path("abc"), path("abd"))), placed("all", "abc", 3))
    assert repeated(fleet, "abc", 3) == 0


def test_a_worker_that_takes_much_longer_than_predicted_is_not_waited_for() -> None:
    """Its oldest prefill was predicted to take 1 s: twice that and a tenth more."""
    fleet = fleet_of(BUSY, placed("leader", "abc"))
    assert repeated(fleet, "abc", 3, after_s=2.09) == 3
    assert repeated(fleet, "abc", 3, after_s=2.11) == 0


def test_waiting_pays_if_more_is_computed_again_than_the_engine_is_idle() -> None:
    """10 ms without work are 100 tokens."""
    tokens = HANDOVER_S / MODEL.b_s
    assert not waits_for_leader(tokens - 1, 5_000, 100, MODEL.service_s)
    assert waits_for_leader(tokens + 1, 5_000, 100, MODEL.service_s)
    assert not waits_for_leader(5_000, 0, 100, MODEL.service_s)
    assert not waits_for_leader(0, 5_000, 100, MODEL.service_s)
