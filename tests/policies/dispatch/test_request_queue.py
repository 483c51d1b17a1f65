"""Order of requests: the laws of the common queue, checked on the real rooms over a modelled fleet."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes.rooms import Request, Stage
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    SLO_UNREACHABLE,
    Admission,
    AdmissionRules,
    Decision,
    Displaced,
    Expire,
    Expired,
    FleetState,
    Lanes,
    Left,
    OpLog,
    OpRefused,
    Placed,
    Queued,
    QueueFull,
    RequestQueue,
    RoomRules,
    ServiceLevel,
    Shed,
    Unserved,
    WaitEnd,
    Waiting,
    WorkerPut,
)
from policies.dispatch.request_queue import LEFT_MAX, LOOK_S, MOVED_MAX

arrivals = st.lists(
    st.tuples(
        st.floats(0, 0.3).map(lambda gap_s: round(gap_s, 3)),
        st.sampled_from([256, 1024, 4096, 16_384]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=40,
)
"""Gap before it, tokens, replica."""


def play(stage: Stage, script: list[tuple[float, int, int]], **more: Any) -> list[Request]:
    """Let requests arrive, with the law of the idle worker checked at every arrival and at every step."""
    for gap_s, tokens, replica in script:
        stage.time.advance(gap_s)
        stage.arrive(tokens, replica=replica % len(stage.replicas), **more)
    stage.run()
    assert all(request.done for request in stage.requests)
    assert not any(len(replica.room) for replica in stage.replicas)
    for replica in stage.replicas:
        assert replica.fleet.tickets.count == 0
        assert not replica.fleet.loads.requests
    return stage.requests


def order(requests: list[Request]) -> list[Request]:
    """Those that waited, as they went."""
    waited = [request for request in requests if request.ticket_id]
    return sorted(waited, key=lambda request: (request.dispatched_us, request.decision.placed.request_id))  # type: ignore[union-attr]


def test_a_request_that_finds_room_goes_at_once_and_says_nothing() -> None:
    stage = Stage()
    stage.arrive(4096)
    assert not any(isinstance(op, Waiting) for op in stage.said)
    assert stage.requests[0].decision is not None


def test_a_request_waits_when_no_worker_has_room_and_goes_when_one_has() -> None:
    """16,384 tokens are about 1.2 s, and the target is 0.5 s: the second waits for 0.7 s."""
    stage = Stage(workers=1)
    stage.arrive(16_384)
    second = stage.arrive(256)
    assert second.waits
    assert stage.replicas[0].fleet.tickets.count == 1
    stage.time.advance(0.6)
    assert second.waits
    stage.time.advance(0.2)
    assert second.decision is not None
    assert second.decision.placed.request_id == second.ticket_id
    assert stage.replicas[0].fleet.tickets.count == 0
    (ended,) = stage.replicas[0].ended
    assert ended[1] is WaitEnd.DISPATCHED
    assert ended[2] == pytest.approx(0.7, abs=0.1)


@given(arrivals)
def test_with_k_0_the_first_to_come_is_the_first_to_go(script: list[tuple[float, int, int]]) -> None:
    """One worker: of several, a request may wait for one while a later one takes another."""
    requests = play(Stage(1, k=0.0), script)
    gone = order(requests)
    assert [request.arrived_us for request in gone] == sorted(request.arrived_us for request in gone)


@given(arrivals, st.sampled_from([0.5, 2.0, 8.0, 1e6]))
def test_nobody_is_overtaken_by_one_that_came_more_than_k_times_its_work_later(
    script: list[tuple[float, int, int]], k: float
) -> None:
    """One replica, one worker, nothing cached: all wait for the same."""
    gone = order(play(Stage(1, k=k), script))
    for index, earlier in enumerate(gone):
        for later in gone[index + 1 :]:
            assert earlier.arrived_us <= later.arrived_us + k * later.service_us + 1


def test_with_a_great_k_the_least_work_goes_first() -> None:
    stage = Stage(workers=1, k=1e6)
    stage.arrive(16_384)
    waiting = [stage.arrive(tokens) for tokens in (8192, 4096, 1024, 2048)]
    stage.run()
    assert [request.parsed.prompt_bytes // 4 for request in order(waiting)] == [1024, 2048, 4096, 8192]


@given(arrivals, st.integers(1, 4), st.sampled_from([0.0, 0.005]), st.integers(0, 4096), st.integers(1, 4))
def test_nobody_waits_while_a_worker_is_idle(
    script: list[tuple[float, int, int]], workers: int, delay_s: float, shared: int, replicas: int
) -> None:
    """Cached blocks are worth less here than the target backlog, so that waiting for them never pays.

    The wait lasts only as long as a look, the log and the grace take.
    """
    stage = Stage(workers, replicas, delay_s=delay_s)
    patience_s = 2 * LOOK_S + (0.02 + 6 * delay_s if replicas > 1 else 0.0)
    for gap_s, tokens, replica in script:
        stage.time.advance(gap_s)
        stage.arrive(tokens, shared=shared, replica=replica % replicas)
    since_s: dict[str, float] = {}
    while stage.time.pending:
        stage.time.turn()
        idle = stage.idle_while_waiting()
        since_s = {worker: since_s.get(worker, stage.time.time()) for worker in idle}
        for worker, idle_s in since_s.items():
            assert stage.time.time() - idle_s <= patience_s, worker
    assert all(request.done for request in stage.requests)


# The workers for which a request waits.


def test_who_would_rather_have_its_busy_worker_than_an_idle_one_waits_for_that_one() -> None:
    """32,000 tokens cached there are worth more than the 1.2 s of backlog."""
    stage = Stage(workers=2)
    warm = stage.arrive(32_000, name=7)
    stage.run()
    assert warm.decision is not None
    home = warm.decision.placed.worker
    stage.arrive(32_000 + 16_384, name=7)
    for name in (101, 102):
        stage.arrive(32_000, name=name)  # the other one is busy, too
    follower = stage.arrive(32_000 + 256, name=7)
    cold = stage.arrive(256, name=103)
    said = {op.request_id: op for op in stage.said if isinstance(op, Waiting)}
    assert said[follower.ticket_id].worker == home
    assert said[cold.ticket_id].worker == ""


def test_who_waits_for_what_another_is_prefilling_leaves_the_room_to_the_next_one() -> None:
    """The follower finds 4,096 tokens after 0.3 s, and would compute most of them again before."""
    stage = Stage(workers=1, step_tokens=8192)
    stage.arrive(256, name=50)
    stage.arrive(4096, name=7)
    follower = stage.arrive(4096 + 512, name=7)
    other = stage.arrive(1024, name=60)
    assert follower.waits
    stage.time.advance(2 * LOOK_S)
    assert follower.waits
    assert other.decision is not None
    assert stage.replicas[0].fleet.tickets.declined == {follower.ticket_id}
    stage.run()
    assert follower.decision is not None
    assert follower.decision.attempt.chosen.uncached_tokens == 512
    assert not stage.replicas[0].fleet.tickets.inversions.count
    assert not stage.replicas[0].fleet.tickets.declined


def test_who_waits_for_a_busy_worker_declines_one_that_stands_idle_and_costs_more() -> None:
    """Its worker is sooner: 0.8 s of backlog against 2.4 s of work. It goes there when that has room."""
    rules = RoomRules(ask_s=1000.0)
    stage = Stage(workers=2, rules=rules)
    warm = stage.arrive(32_000, name=7)
    stage.run()
    assert warm.decision is not None
    home = warm.decision.placed.worker
    stage.arrive(32_000 + 16_384, name=7)
    stage.arrive(8192, name=101)
    follower = stage.arrive(32_000 + 256, name=7)
    assert follower.waits
    stage.time.advance(0.9)
    assert follower.waits
    assert follower.asked == 2
    stage.time.advance(0.04)
    assert follower.decision is not None
    assert follower.decision.placed.worker == home


def test_the_first_of_a_lane_need_not_wait_for_a_look_at_all_workers() -> None:
    stage = Stage(workers=1, rules=RoomRules(look_s=1000.0))
    stage.arrive(8192)
    waiting = stage.arrive(256)
    assert waiting.waits
    stage.time.advance(0.7)
    assert waiting.decision is not None


def test_who_begins_to_wait_knows_what_was_placed_before() -> None:
    stage = Stage(workers=1, replicas=2)
    stage.arrive(60_000)
    stage.arrive(4096)
    placed = Placed("elsewhere", stage.time.clock.now_us(), "w0", "r0", 1, 1, 1, (b"12345678",))
    stage.replicas[0].publish(placed)
    assert len(stage.replicas[1].fleet.placed_paths) == 1
    assert stage.arrive(4096, replica=1).waits
    assert not stage.replicas[1].fleet.placed_paths


def test_work_that_others_have_cached_meanwhile_makes_a_request_cheap() -> None:
    """The queue asks it again while it waits: its ticket changes, and it goes before earlier requests."""
    stage = Stage(workers=1, k=4.0)
    stage.arrive(16_384, name=50)
    leader = stage.arrive(32_000, name=7)
    other = stage.arrive(16_384, name=60)
    follower = stage.arrive(32_000, name=7)
    first_key_us = {op.request_id: op.key_us for op in reversed(stage.said) if isinstance(op, Waiting)}
    stage.run()
    last_key_us = {op.request_id: op.key_us for op in stage.said if isinstance(op, Waiting)}
    assert order([leader, other, follower]) == [other, leader, follower]
    assert last_key_us[follower.ticket_id] < first_key_us[follower.ticket_id] - 4_000_000
    assert last_key_us[other.ticket_id] == first_key_us[other.ticket_id]


def test_who_follows_a_prompt_that_another_replica_placed_says_so_at_the_next_look() -> None:
    """Among hundreds that wait, and are asked in turn every other second."""
    stage = Stage(workers=1, replicas=2, k=4.0)
    stage.arrive(16_384, name=50)
    others = [stage.arrive(4096, name=100 + number) for number in range(800)]
    leader = stage.arrive(32_000, name=7, replica=1)
    followers = [stage.arrive(32_000, name=7) for _ in range(3)]
    asked = sum(request.asked for request in others)
    before = {
        request.ticket_id: stage.replicas[1].fleet.tickets.get(request.ticket_id) for request in followers
    }
    placed = Placed("elsewhere", stage.time.clock.now_us(), "w0", "r1", 1, 1, 1, leader.parsed.paths)
    stage.replicas[1].publish(placed)
    stage.time.advance(2 * LOOK_S)
    for request in followers:
        now, then = stage.replicas[1].fleet.tickets.get(request.ticket_id), before[request.ticket_id]
        assert now is not None
        assert then is not None
        assert now.key_us < then.key_us - 4_000_000
    assert sum(request.asked for request in others) - asked <= 12


def test_nobody_is_asked_again_and_again_in_vain() -> None:
    """The queue asks at most 200 of 200 waiting requests a second, for 4 s."""
    stage = Stage(workers=1)
    stage.arrive(60_000)
    waiting = [stage.arrive(4096) for _ in range(200)]
    stage.time.advance(4.0)
    assert all(request.waits for request in waiting)
    assert 4 <= max(request.asked for request in waiting) <= 6
    assert sum(request.asked for request in waiting) <= 200 + 800
    assert sum(isinstance(op, Waiting) for op in stage.said) == 200


def test_when_nobody_serves_its_model_any_more_a_waiting_request_is_told_so() -> None:
    stage = Stage(workers=1)
    stage.arrive(60_000)
    waiting = stage.arrive(4096)
    stage.put_worker("w0", draining=True)
    stage.time.advance(0.5)
    assert isinstance(waiting.error, Unserved)
    assert stage.replicas[0].ended[-1][1] is WaitEnd.NO_WORKER
    assert stage.replicas[0].fleet.tickets.count == 0


def test_a_worker_that_is_added_takes_what_waits() -> None:
    stage = Stage(workers=1)
    stage.arrive(60_000)
    waiting = [stage.arrive(1024) for _ in range(3)]
    stage.put_worker("w1")
    stage.time.advance(2 * LOOK_S)
    assert {request.decision and request.decision.placed.worker for request in waiting} == {"w1"}


# Bounds.


def full(stage: Stage, count: int, **more: Any) -> list[Request]:
    stage.arrive(60_000)
    return [stage.arrive(4096, **more) for _ in range(count)]


def test_beyond_the_bound_of_requests_the_next_one_is_rejected_with_the_time_that_the_others_take() -> None:
    """Three of 4,096 tokens take 0.29 s each; and a client is asked to wait for a second at least."""
    stage = Stage(workers=1, replicas=2, rules=RoomRules(size=3))
    waiting = full(stage, 2)
    waiting.append(stage.arrive(60_000, replica=1))
    rejected = stage.arrive(4096, replica=1)
    assert isinstance(rejected.error, QueueFull)
    assert rejected.error.retry_after_s == pytest.approx(stage.replicas[1].room.drain_s("m|"))
    assert rejected.error.retry_after_s == pytest.approx(2 * 0.3 + 5.0, rel=0.1)
    assert [request.waits for request in waiting] == [True] * 3
    assert stage.replicas[1].ended[-1][1] is WaitEnd.REJECTED
    assert [each.room.longest_drain_s() for each in stage.replicas] == [
        stage.replicas[1].room.drain_s("m|")
    ] * 2
    stage.run()
    assert all(request.done for request in waiting)
    assert [each.room.longest_drain_s() for each in stage.replicas] == [0.0, 0.0]


@pytest.mark.parametrize("rules", [RoomRules(tokens_max=10_000), RoomRules(drain_s_max=3.0)])
def test_the_bound_of_work_is_reached_by_one_request_and_holds_for_the_next(rules: RoomRules) -> None:
    """The two that wait have 4,096 tokens each, 0.3 s of work, and the long one 5 s."""
    stage = Stage(workers=1, rules=rules)
    assert all(request.waits for request in full(stage, 2))
    assert stage.arrive(60_000).waits
    assert isinstance(stage.arrive(256).error, QueueFull)


def test_in_a_full_queue_the_more_urgent_takes_the_place_of_the_last_of_the_least_urgent() -> None:
    weights = {"high": 8.0, "normal": 4.0, "low": 1.0}
    stage = Stage(workers=1, rules=RoomRules(size=3), weight_of=lambda name: weights.get(name, 1.0))
    normal, early, late = (*full(stage, 1), *(stage.arrive(4096, flow="low/") for _ in range(2)))
    assert isinstance(stage.arrive(256, flow="low/").error, QueueFull)
    urgent = stage.arrive(4096, flow="high/")
    assert urgent.waits
    assert isinstance(late.error, Displaced)
    assert late.error.retry_after_s >= 1
    assert stage.arrive(4096, flow="normal/").waits
    assert isinstance(early.error, Displaced)
    assert isinstance(stage.arrive(4096, flow="normal/").error, QueueFull)
    assert normal.waits
    assert stage.replicas[0].fleet.tickets.count == 3


def test_in_a_full_queue_whoever_asks_most_often_does_not_keep_the_others_out() -> None:
    """Three of a noisy tenant fill the queue; a quiet one, equal in all else, gets a place."""
    stage = Stage(workers=1, rules=RoomRules(size=3))
    first, second, third = full(stage, 3, flow="normal/noisy")
    quiet = stage.arrive(4096, flow="normal/quiet")
    assert quiet.waits
    assert isinstance(third.error, Displaced)
    assert isinstance(stage.arrive(4096, flow="normal/noisy").error, QueueFull)
    assert isinstance(stage.arrive(4096, flow="normal/quiet").error, QueueFull)
    assert [first.waits, second.waits, quiet.waits] == [True] * 3
    stage.run()
    assert all(request.done for request in (first, second, quiet))


def test_a_tenants_places_are_by_its_weight_and_by_what_waits_at_all_replicas() -> None:
    """The heavy one may have three times as much waiting, and has it at a sibling."""
    weights = {"normal/heavy": 3.0}
    stage = Stage(
        workers=1,
        replicas=2,
        rules=RoomRules(size=4),
        weight_of=lambda name: weights.get(name, 1.0),
    )
    elsewhere = full(stage, 2, flow="normal/heavy", replica=1)
    light = [stage.arrive(4096, flow="normal/light") for _ in range(2)]
    stage.time.advance(0.001)
    assert stage.arrive(4096, flow="normal/heavy").waits
    assert isinstance(light[1].error, Displaced)
    assert isinstance(stage.arrive(4096, flow="normal/heavy").error, QueueFull)
    assert [request.waits for request in (*elsewhere, light[0])] == [True] * 3


def test_a_request_is_expired_when_it_waited_for_too_long() -> None:
    stage = Stage(workers=1, rules=RoomRules(timeout_s=1.0))
    (waiting,) = full(stage, 1)
    stage.time.advance(0.99)
    assert waiting.waits
    stage.time.advance(3 * LOOK_S)
    assert isinstance(waiting.error, Expired)
    assert stage.replicas[0].ended[-1][1] is WaitEnd.EXPIRED
    stage.run()
    assert waiting.decision is None
    assert not stage.replicas[0].fleet.tickets.count


def test_an_operators_word_at_any_replica_expires_a_request() -> None:
    """It reaches the replica that holds the request through the log, and no other request."""
    stage = Stage(workers=1, replicas=2)
    ended, other = full(stage, 2)
    stage.time.advance(0.1)
    stage.replicas[1].publish(Expire(stage.replicas[1].now_us(), "two", ended.ticket_id))
    stage.replicas[1].publish(Expire(stage.replicas[1].now_us(), "two", "nobody"))
    stage.time.advance(3 * LOOK_S)
    assert isinstance(ended.error, Expired)
    assert (ended.error.by_operator, other.waits) == (True, True)
    assert ended.error.waited_s == pytest.approx(0.1, abs=0.05)
    stage.run()
    assert other.decision is not None
    assert [replica.fleet.tickets.count for replica in stage.replicas] == [0, 0]


def test_who_leaves_is_not_dispatched_and_leaves_no_ticket() -> None:
    stage = Stage(workers=1, replicas=2)
    (waiting,) = full(stage, 1)
    stage.replicas[0].room.leave(waiting.ticket_id)
    stage.replicas[0].room.leave(waiting.ticket_id)
    assert [replica.fleet.tickets.count for replica in stage.replicas] == [0, 0]
    stage.run()
    assert waiting.decision is None
    assert [how for _, how, _ in stage.replicas[0].ended] == [WaitEnd.LEFT]


# Several replicas.


def test_replicas_serve_the_common_order() -> None:
    stage = Stage(workers=1, replicas=3, k=0.0)
    stage.arrive(16_384)
    waiting = []
    for number in range(12):
        stage.time.advance(0.001)
        waiting.append(stage.arrive(4096, replica=number % 3))
    stage.run()
    assert order(waiting) == waiting
    assert not any(replica.fleet.tickets.inversions.count for replica in stage.replicas)


@pytest.mark.no_cover
def test_a_late_log_costs_the_order_no_more_than_its_delay() -> None:
    """Keys are out of order by no more than the log's delay and the grace time."""
    stage = Stage(workers=2, replicas=4, k=0.0, delay_s=0.005)
    waiting = []
    for number in range(100):
        stage.time.advance(0.01)
        waiting.append(stage.arrive(4096, replica=number * 7 % 4))
    stage.run()
    gone = order(waiting)
    assert len(gone) > 50
    latest_us = 0
    for request in gone:
        latest_us = max(latest_us, request.arrived_us)
        assert latest_us - request.arrived_us <= 30_000


def test_what_waits_at_a_replica_that_died_is_waited_for_no_longer_than_the_grace() -> None:
    """Its heartbeat expires after 3 s; no request waits that long."""
    stage = Stage(workers=1, replicas=2, k=0.0, delay_s=0.002)
    stage.arrive(16_384, replica=1)
    stage.time.advance(0.01)
    lost = [stage.arrive(4096, replica=0) for _ in range(3)]
    stage.time.advance(0.01)
    mine = [stage.arrive(4096, replica=1) for _ in range(10)]
    stage.kill(0, heard_s=3.0)
    stage.time.advance(2.9)
    assert all(request.decision is None for request in lost)
    assert sum(request.decision is not None for request in mine) >= 8
    assert stage.replicas[1].room.overdue >= 1
    stage.run()
    assert all(request.done for request in mine)
    assert not stage.replicas[1].fleet.tickets.count


def test_of_what_waits_for_another_worker_an_idle_one_is_given_only_the_best_of_all_replicas() -> None:
    """All replicas see it fall idle before they hear of the others' dispatches."""
    stage = Stage(workers=2, replicas=4, delay_s=0.005, rules=RoomRules(ask_s=1000.0))
    warm = stage.arrive(32_000, name=7)
    stage.run()
    assert warm.decision is not None
    stage.arrive(32_000 + 16_384, name=7)
    stage.arrive(8192, name=101)
    stage.time.advance(0.01)
    waiting = []
    for replica in (2, 3, 0, 1):
        waiting.append(stage.arrive(32_000 + 256, name=7, replica=replica))
        stage.time.advance(0.001)
    stage.time.advance(0.55)
    assert all(request.waits for request in waiting)
    while all(request.waits for request in waiting):
        stage.time.turn()
    assert waiting[0].decision is not None
    stage.time.advance(0.004)
    assert all(request.waits for request in waiting[1:])


def test_a_room_that_nobody_used_in_time_goes_to_the_next_in_order_and_not_to_one_of_each_replica() -> None:
    """The first in order died. 8,192 tokens are more than the target: one is enough."""
    stage = Stage(workers=1, replicas=4, k=0.0, delay_s=0.005)
    stage.arrive(16_384, replica=1)
    stage.time.advance(0.01)
    waiting = []
    for replica in (0, 3, 2, 1):
        waiting.append(stage.arrive(8192, replica=replica))
        stage.time.advance(0.01)
    stage.kill(0, heard_s=100.0)
    while all(request.waits for request in waiting):
        stage.time.turn()
    stage.time.advance(0.1)
    assert [request.waits for request in waiting] == [True, False, True, True]
    stage.run(10.0)
    assert order(waiting[1:]) == waiting[1:]


def test_who_could_not_take_a_room_before_a_prefill_ended_has_not_left_it_unused() -> None:
    """The first in order declines until the first prompt is done, 90 ms after the replica's first look.

    That is longer than the grace, but shorter than two looks. The other replica did not know.
    """
    stage = Stage(workers=1, replicas=2, delay_s=0.02, step_tokens=8192, rules=RoomRules(look_s=0.05))
    for replica in stage.replicas:
        replica.fleet.tickets.watched = replica.name
    stage.arrive(1792, name=50)
    stage.arrive(4096, name=7)
    first = stage.arrive(4096 + 512, name=7)
    stage.time.advance(0.025)
    second = stage.arrive(1024, name=60, replica=1)
    stage.time.advance(0.001)
    third = stage.arrive(1024, name=61)
    stage.time.advance(0.1)
    assert all(request.waits for request in (first, second, third))
    stage.time.advance(0.05)
    assert [request.waits for request in (first, second, third)] == [False, False, True]
    stage.run()
    assert order([first, second, third]) == [first, second, third]
    assert not any(replica.fleet.tickets.inversions.count for replica in stage.replicas)


def test_a_replica_that_was_given_up_says_again_what_waits() -> None:
    stage = Stage(workers=1, replicas=2)
    waiting = full(stage, 2)
    left = Left("r0", stage.time.clock.now_us())
    for replica in stage.replicas:
        replica.hear(left)
    assert stage.replicas[1].fleet.tickets.count == 0
    for request in waiting:
        stage.replicas[0].room.republish(request.ticket_id, left.at_us, left.at_us + 1)
        stage.replicas[0].room.republish(request.ticket_id, left.at_us, left.at_us + 2)
    assert [replica.fleet.tickets.count for replica in stage.replicas] == [2, 2]
    assert sum(isinstance(op, Waiting) for op in stage.said) == 4
    stage.run()
    assert all(request.done for request in waiting)


def test_a_ticket_of_a_former_life_stands_in_nobodys_way() -> None:
    stage = Stage(workers=1, replicas=1, k=0.0)
    replica = stage.replicas[0]
    (waiting,) = full(stage, 1)
    ghost = Waiting("ghost", 1, "r0", 1, 1, "m|", "", "normal/", 1, 1, 1)
    replica.hear(ghost)
    stage.run()
    assert waiting.done
    assert not replica.fleet.tickets.count


@pytest.mark.no_cover
def test_of_two_who_always_wait_each_is_served_its_share() -> None:
    """Many short requests of one tenant, and few long ones of another, on one worker."""
    stage = Stage(workers=1, k=4.0, rules=RoomRules(timeout_s=1000.0))
    many = [stage.arrive(1024, flow="normal/many") for _ in range(600)]
    few = [stage.arrive(8192, flow="normal/few") for _ in range(75)]
    stage.time.advance(30.0)
    served_s = [
        sum(request.decision.placed.service_us for request in requests if request.decision) / 1e6
        for requests in (many, few)
    ]
    assert served_s[0] + served_s[1] == pytest.approx(30.0, abs=1.0)
    assert served_s[0] == pytest.approx(served_s[1], abs=2.5)


def test_a_worker_at_its_caps_is_given_nothing_more() -> None:
    """Two at a time: the target of 100 s would let all of them go."""
    rules = AdmissionRules(backlog_target_s=100.0, backlog_target_s_max=100.0, worker_running_max=2)
    stage = Stage(workers=1, admission=rules)
    requests = [stage.arrive(4096) for _ in range(5)]
    while stage.time.pending:
        assert sum(r.decision is not None and not r.done for r in requests) <= 2
        stage.time.turn()
    assert all(request.done for request in requests)


def test_a_look_moves_so_many_at_a_time_and_goes_on_in_the_next_turn() -> None:
    """A hundred wait at a worker's caps, which are then lifted: no look may hold the loop for all."""
    rules = AdmissionRules(backlog_target_s=100.0, backlog_target_s_max=100.0, worker_running_max=1)
    stage = Stage(workers=1, admission=rules)
    waiting = full(stage, 100)
    stage.put_worker("w0", labels={"max_running_requests": "1000"}, at_us=stage.time.clock.now_us() + 1)
    gone = []
    while not gone or gone[-1] < len(waiting):
        stage.time.turn()
        gone.append(sum(request.decision is not None for request in waiting))
    steps = [after - before for before, after in itertools.pairwise([0, *gone]) if after > before]
    assert steps == [MOVED_MAX, MOVED_MAX, MOVED_MAX, 100 - 3 * MOVED_MAX]
    stage.run()


@pytest.mark.parametrize("k", [0.0, 4.0])
@given(script=arrivals)
def test_who_is_let_in_keeps_what_is_promised_and_who_would_not_is_told(
    k: float, script: list[tuple[float, int, int]]
) -> None:
    """2 s to the first token. An overtaken request is rejected as soon as it is certain to miss that."""
    level = ServiceLevel(ttft_slo_s=2.0)
    stage = Stage(workers=2, k=k, level=level)
    for gap_s, tokens, _ in script * 2:
        stage.time.advance(gap_s / 2)
        stage.arrive(tokens)
    stage.run()
    for request in stage.requests:
        assert request.done != (request.error is not None)
        assert request.ttft_s <= level.ttft_slo_s + LOOK_S
        if request.error is not None:
            assert isinstance(request.error, Shed)
            assert request.error.reason == SLO_UNREACHABLE
    ended = [how for _, how, _ in stage.replicas[0].ended]
    assert set(ended) <= {WaitEnd.DISPATCHED, WaitEnd.REJECTED}
    assert stage.replicas[0].fleet.tickets.count == 0


@pytest.mark.no_cover
def test_under_a_promise_the_fleet_is_kept_busy_with_what_keeps_it() -> None:
    """Three times the capacity of two workers, for 20 s: without a promise nearly all would be late."""
    level = ServiceLevel(ttft_slo_s=2.0)
    done = []
    for promised in (level, None):
        stage = Stage(workers=2, k=0.0, level=promised)
        for _ in range(200):
            stage.time.advance(0.1)
            stage.arrive(8192)
        stage.run()
        done.append(sum(request.done and request.ttft_s <= level.ttft_slo_s for request in stage.requests))
    busy_s = 2 * 22.0
    service_s = stage.requests[-1].service_us / 1e6
    assert done[0] >= 0.9 * busy_s / service_s
    assert done[1] <= 0.3 * done[0]


def test_a_ticket_that_cannot_be_published_is_no_ticket() -> None:
    stage = Stage(workers=1)
    stage.arrive(16_384)
    stage.replicas[0].refuses = Waiting
    with pytest.raises(OpRefused):
        stage.arrive(256)
    assert len(stage.replicas[0].room) == 0
    assert stage.replicas[0].fleet.tickets.count == 0


class Timer:
    def cancel(self) -> None:
        """Nothing is due."""


class Recorder:
    """A request that goes on waiting, and notes the rooms that it is offered."""

    def __init__(self, op: Waiting) -> None:
        self.op = op
        self.offered: list[int] = []

    def decide(self, _ticket_id: str, turn: int) -> Queued:
        self.offered.append(turn)
        return Queued(self.op, b"", 0)

    def dispatched(self, _decision: Decision) -> None:
        raise AssertionError("it goes on waiting")

    def refused(self, refusal: object) -> None:
        raise AssertionError(refusal)


def test_rooms_left_to_another_replica_hold_up_no_request_that_waits_for_one_behind_them() -> None:
    """Every worker has room, and the best request of all but the last one's is of another replica."""
    fleet, now_us = FleetState(), 10**12
    workers = LEFT_MAX + 10
    for number in range(workers):
        fleet.apply(WorkerPut(f"w{number:03}:1", 1, "static", f"http://w{number}:1"))
        fleet.apply(Placed(f"p{number}", now_us, f"w{number:03}:1", "other", 100_000, 1, 1, (b"",)))
    fleet.apply(Waiting("foreign", now_us, "other", now_us, now_us, "m|", "", "normal/a", 1000, 1, 1))
    slots = np.arange(workers)
    looks: list[Callable[[], None]] = []

    def call_later(_delay_s: float, look: Callable[[], None]) -> Timer:
        looks.append(look)
        return Timer()

    queue = RequestQueue(
        log=OpLog("own", fleet.apply, lambda: now_us),
        fleet=fleet,
        admission=Admission(AdmissionRules(), fleet),
        lanes=Lanes(lambda _lane: slots),
        rules=RoomRules(),
        call_later=call_later,
        grace_s=lambda: 0.05,
        ended=lambda *_: None,
    )
    last = fleet.worker(f"w{workers - 1:03}:1")
    assert last is not None
    op = Waiting("own", now_us, "own", now_us, now_us - 1, "m|", last.worker_id, "normal/a", 1000, 1, 1)
    waiter = Recorder(op)
    queue.begin(waiter, Queued(op, b"", 0))
    looks.pop()()
    assert waiter.offered == [last.slot]
