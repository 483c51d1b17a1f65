"""Laws of the waiting queue, under drawn workloads with sessions whose prompts are cached somewhere.

A request is held only where the price of waiting is at most that of starting on any idle worker, and only for
as long as that is so (`policies.dispatch.decision`). The rest follows: no request is overtaken beyond the
bound of the order, none starves, and declining costs few decisions.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from fakes.rooms import Replica, Request, Stage
from hypothesis import given
from hypothesis import strategies as st

from policies import FULL_ATTENTION, Expired, QueueView, RoomRules, lane_of
from policies.dispatch.request_queue import ASKED_MAX, DECLINED_MAX, LOOK_S
from policies.scoring.expected_cost import expected_cost

K = 4.0
ASK_S = 0.05
GRACE_S = 0.02
"""The grace time of `fakes.rooms` without a delay of the log."""

Arrival = tuple[float, int, int, int]

arrivals = st.lists(
    st.tuples(
        st.sampled_from((0.0, 0.02, 0.1, 0.6)),
        st.integers(0, 3),
        st.integers(2, 40),
        st.integers(0, 2),
    ),
    min_size=2,
    max_size=30,
)
"""Seconds after the one before, session, length in 1,024 tokens, and replica."""

fleets = st.tuples(st.integers(1, 3), st.sampled_from((1, 3)))
"""Workers and replicas."""


def arrive(stage: Stage, arrival: Arrival) -> Request:
    """The next turn of a session: its prompts are beginnings of each other."""
    gap_s, session, length, replica = arrival
    stage.time.advance(gap_s)
    return stage.arrive(1024 * length, name=session, replica=replica % len(stage.replicas))


def is_idle(replica: Replica, slot: int) -> bool:
    return bool(replica.admission.idle(np.array([slot]), replica.now_us()))


def prices(request: Request) -> dict[int, float]:
    """Price of each worker for a request that waits, by slot."""
    replica = request.replica
    fleet, lane = replica.fleet, lane_of("m")
    slots = replica.slots_of(lane)
    queue = QueueView(
        *(fleet.tickets, lane, len(slots), request.arrived_us, K, replica.admission.rules.backlog_target_s),
        fleet.tickets.get(request.ticket_id),
    )
    tokens = request.parsed.prompt_bytes / 4
    candidates = fleet.candidates(
        slots, request.parsed.paths, FULL_ATTENTION, tokens, 256.0, replica.now_us(), queue=queue
    )
    return {each.slot: expected_cost(each) for each in candidates.timings(tokens, candidates.slow.few)}


def better_idle(stage: Stage) -> set[tuple[str, int]]:
    """Requests that wait, each with an idle worker where it would cost less than anywhere else."""
    found = set()
    for request in stage.requests:
        if request.waits:
            by_slot = prices(request)
            idle = {slot: cost for slot, cost in by_slot.items() if is_idle(request.replica, slot)}
            busy = min((cost for slot, cost in by_slot.items() if slot not in idle), default=np.inf)
            found |= {(request.ticket_id, slot) for slot, cost in idle.items() if cost < busy * (1 - 1e-6)}
    return found


@given(arrivals, fleets)
def test_who_waits_beside_an_idle_worker_pays_no_more_for_that_than_there(
    script: list[Arrival], fleet: tuple[int, int]
) -> None:
    """The wait lasts only as long as an answer is believed, a look and, with replicas, the grace take."""
    workers, replicas = fleet
    stage = Stage(workers, replicas, k=K, rules=RoomRules(ask_s=ASK_S))
    patience_s = ASK_S + 2 * LOOK_S + (replicas - 1) * (GRACE_S + 2 * LOOK_S)
    since_s: dict[tuple[str, int], float] = {}

    def check() -> None:
        nonlocal since_s
        now_s = stage.time.time()
        since_s = {each: since_s.get(each, now_s) for each in better_idle(stage)}
        for each, from_s in since_s.items():
            assert now_s - from_s <= patience_s, each

    for arrival in script:
        arrive(stage, arrival)
        check()
    while stage.time.pending:
        stage.time.turn()
        check()
    assert all(request.done for request in stage.requests)


@given(arrivals, st.integers(1, 4))
def test_a_cold_prompt_never_waits_beside_an_idle_worker(script: list[Arrival], workers: int) -> None:
    """Every prompt is another one: where it starts is nothing to it."""
    stage = Stage(workers, k=K)
    idle_s: dict[int, float] = {}
    for number, (gap_s, _, length, _) in enumerate(script):
        stage.time.advance(gap_s)
        request = stage.arrive(1024 * length, name=100 + number)
        assert not request.waits or not any(is_idle(request.replica, slot) for slot in range(workers))
    while stage.time.pending:
        stage.time.turn()
        waits = [request for request in stage.requests if request.waits]
        now_s = stage.time.time()
        idle = {slot for slot in range(workers) if waits and is_idle(waits[0].replica, slot)}
        idle_s = {slot: idle_s.get(slot, now_s) for slot in idle}
        assert all(now_s - from_s <= 2 * LOOK_S for from_s in idle_s.values())
    assert all(request.done for request in stage.requests)


@given(arrivals, fleets, st.sampled_from((0.0, 1.0, 4.0, 16.0)))
def test_nobody_is_overtaken_by_one_that_came_more_than_k_times_its_prefill_later(
    script: list[Arrival], fleet: tuple[int, int], k: float
) -> None:
    """Overtaken is a request that waits for the worker of the other one, or for any and prefers that worker.

    The latter counts within a replica: room that one leaves unused beyond the grace time another may take.
    The prefill of a request is the longest predicted while it waited. When another request computes what they
    share, the prediction falls; the place in line follows only when its turn comes.
    """
    stage = Stage(*fleet, k=k, rules=RoomRules(ask_s=ASK_S))
    gone: set[int] = set()
    longest_us: dict[str, int] = {}
    grace_us = 1e6 * GRACE_S * len(stage.replicas) + 10  # microseconds pass between two calls

    def check(
        before: dict[str, tuple[int, int, int]], costs: dict[Replica, dict[str, dict[int, float]]]
    ) -> None:
        for request in stage.requests:
            if request.decision is None or id(request) in gone:
                continue
            gone.add(id(request))
            slot = request.decision.attempt.chosen.slot
            for ticket_id, (wanted, arrived_us, _) in before.items():
                still = request.replica.fleet.tickets.get(ticket_id)
                by_slot = costs[request.replica].get(ticket_id, {})
                prefers = by_slot and by_slot[slot] <= min(by_slot.values()) * (1 + 1e-6)
                if (wanted == slot or (wanted < 0 and prefers)) and still is not None:
                    assert request.arrived_us - arrived_us <= k * longest_us[ticket_id] + grace_us

    def tickets() -> dict[str, tuple[int, int, int]]:
        return {
            each.request_id: (each.slot, each.arrived_us, each.service_us)
            for each in stage.replicas[0].fleet.tickets
        }

    def step(go: Callable[[], object]) -> None:
        before = tickets()
        longest_us.update({name: max(us, longest_us.get(name, 0)) for name, (_, _, us) in before.items()})
        costs: dict[Replica, dict[str, dict[int, float]]] = {each: {} for each in stage.replicas}
        for waiting in stage.requests:
            if waiting.waits:
                costs[waiting.replica][waiting.ticket_id] = prices(waiting)
        go()
        check({name: row for name, row in before.items() if tickets().get(name) == row}, costs)

    for gap_s, *arrival in script:
        stage.time.advance(gap_s)
        step(partial(arrive, stage, (0.0, *arrival)))
    while stage.time.pending:
        step(stage.time.turn)
    assert all(request.done for request in stage.requests)


@given(arrivals, fleets, st.sampled_from((2_048, 16_384, 60_000)), st.sampled_from((1.0, 60.0)))
def test_with_small_caches_all_that_waits_goes_or_expires(
    script: list[Arrival], fleet: tuple[int, int], capacity_tokens: int, timeout_s: float
) -> None:
    workers, replicas = fleet
    stage = Stage(0, replicas, k=K, rules=RoomRules(ask_s=ASK_S, timeout_s=timeout_s))
    for number in range(workers):
        stage.put_worker(f"w{number}", capacity_tokens=capacity_tokens)
    for arrival in script:
        arrive(stage, arrival)
    stage.run()
    for request in stage.requests:
        assert request.done or isinstance(request.error, Expired)
        if request.dispatched_us is not None:
            assert request.dispatched_us - request.arrived_us <= 1e6 * (timeout_s + 2 * LOOK_S)
        if timeout_s > 30.0:
            assert request.done
    for replica in stage.replicas:
        assert not len(replica.room)
        assert not replica.fleet.tickets.count
        assert not replica.fleet.loads.requests


@pytest.mark.parametrize("waiting", [20, 200])
def test_idle_workers_that_everybody_declines_cost_few_decisions(waiting: int) -> None:
    """All wait for the worker that has their 98,304 tokens, 9 s of work elsewhere; seven others are idle."""
    stage = Stage(8, k=K)
    stage.arrive(98_304, name=7)
    stage.run()
    stage.arrive(98_304 + 16_384, name=7)
    for number in range(waiting):
        stage.arrive(98_304 + 256 * (number % 8 + 1), name=7)
    waits = [request for request in stage.requests if request.waits]
    assert len(waits) == waiting
    rules = RoomRules()
    stage.time.advance(rules.ask_s)
    asked = sum(request.asked for request in waits)
    stage.time.advance(rules.ask_s)
    assert all(request.waits for request in waits)
    looks = rules.ask_s / LOOK_S + 1
    assert sum(request.asked for request in waits) - asked <= DECLINED_MAX + 2 + ASKED_MAX * looks


@pytest.mark.parametrize("cold", range(2, 8))
def test_a_session_moves_when_that_pays_and_is_not_sent_back_in_the_next_turn(cold: int) -> None:
    """Its worker has seconds to do for a cold prompt and the other is idle, or the cold prompt went there."""
    stage = Stage(workers=2, k=K)

    def turn(kilotokens: int) -> str:
        request = stage.arrive(1024 * kilotokens, name=1)
        stage.time.advance(6.0)
        assert request.decision is not None
        return request.decision.placed.worker

    home = turn(16)
    long = stage.arrive(1024 * 128, name=cold)
    assert long.decision is not None
    moves = long.decision.placed.worker == home
    visited = [turn(kilotokens) for kilotokens in (20, 24, 28, 32)]

    assert (visited[0] != home) == moves
    assert set(visited) == {visited[0]}
