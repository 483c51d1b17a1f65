"""Requests that wait for the room of a decode worker: never too many there, never one without reason."""

from collections import Counter

import numpy as np
from fakes.rooms import Stage
from hypothesis import given
from hypothesis import strategies as st

from policies import AdmissionRules, Finished, Placed
from policies.dispatch.request_queue import LOOK_S

CAPACITY_TOKENS, USABLE_TOKENS = 10_000, 9_500
"""Capacity of a decode worker, and the 95 percent of it that are used: two or three long prompts."""

RUNNING_MAX = 4

ASKED_MAX_PER_S = 4
"""Decisions per second of a request that cannot go (`policies.dispatch.request_queue.ASKED_S`)."""

arrivals = st.lists(
    st.tuples(
        st.floats(0, 0.5).map(lambda gap_s: round(gap_s, 3)),
        st.integers(1, 16).map(lambda blocks: 256 * blocks),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=25,
)
"""Gap before it, tokens, replica."""


def stage_of(workers: int, decode: int, replicas: int = 1, **more: object) -> Stage:
    return Stage(
        workers,
        replicas,
        decode=decode,
        decode_tokens=CAPACITY_TOKENS,
        admission=AdmissionRules(worker_running_max=RUNNING_MAX),
        **more,  # type: ignore[arg-type]
    )


def check_rooms(stage: Stage) -> None:
    """No decode worker has been given more than it can take."""
    fleet = stage.replicas[0].fleet
    for worker in fleet.workers():
        if worker.role == "decode":
            requests = fleet.loads.inflight_requests[worker.slot]
            assert requests <= RUNNING_MAX
            assert fleet.loads.inflight_tokens[worker.slot] <= USABLE_TOKENS or requests == 1


def held_in_vain(stage: Stage) -> bool:
    """True if the first to go waits, although a prefill worker is idle and a decode worker has its room."""
    seen = stage.replicas[0]
    first = min(seen.fleet.tickets, default=None)
    if first is None:
        return False
    roles: dict[str, list[int]] = {"prefill": [], "decode": []}
    for worker in seen.fleet.workers():
        roles[worker.role].append(worker.slot)
    lacking = seen.admission.lacking(np.array(roles["decode"]), first.context_tokens, seen.now_us())
    return not seen.fleet.loads.prefill_us[roles["prefill"]].all() and bool((lacking == 0).any())


@given(arrivals, st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.0, 0.005]))
def test_nobody_is_held_in_vain_and_everything_is_released_once(
    script: list[tuple[float, int, int]], workers: int, decode: int, replicas: int, delay_s: float
) -> None:
    """In vain: for longer than a look, the log and the grace take."""
    stage = stage_of(workers, decode, replicas, delay_s=delay_s)
    patience_s = 2 * LOOK_S + (0.02 + 6 * delay_s if replicas > 1 else 0.0)
    for gap_s, tokens, replica in script:
        stage.time.advance(gap_s)
        stage.arrive(tokens, replica=replica % replicas)
    since_s: float | None = None
    while stage.time.pending:
        stage.time.turn()
        if not held_in_vain(stage):
            since_s = None
            continue
        since_s = stage.time.time() if since_s is None else since_s
        assert stage.time.time() - since_s <= patience_s
    assert all(request.done for request in stage.requests)
    placed = [op.request_id for op in stage.said if isinstance(op, Placed)]
    ended = Counter(op.request_id for op in stage.said if isinstance(op, Finished))
    assert len(placed) == len(set(placed)) == 2 * len(script)
    assert ended == dict.fromkeys(placed, 1)
    for replica in stage.replicas:
        assert not replica.fleet.loads.requests
        assert replica.fleet.tickets.count == 0


@given(arrivals, st.integers(1, 4), st.integers(1, 3))
def test_no_decode_worker_is_given_more_than_it_can_take(
    script: list[tuple[float, int, int]], workers: int, decode: int
) -> None:
    """The rule holds for one replica, and for several that hear each other at once."""
    stage = stage_of(workers, decode, 2)
    for gap_s, tokens, replica in script:
        stage.time.advance(gap_s)
        stage.arrive(tokens, replica=replica % 2)
        check_rooms(stage)
    while stage.time.pending:
        stage.time.turn()
        check_rooms(stage)


def test_a_large_request_waits_for_its_room_and_no_small_one_takes_it() -> None:
    """It came first: smaller ones would fit, and each of them would make it wait longer."""
    stage = stage_of(4, 1, decode_s=1.0, k=0.0)
    first = [stage.arrive(2048) for _ in range(3)]
    large = stage.arrive(8192)
    stage.time.advance(1.0)
    small = stage.arrive(256)
    assert large.waits
    assert small.waits
    stage.run()
    assert all(request.dispatched_us is not None for request in (*first, large, small))
    assert large.asked <= ASKED_MAX_PER_S * 2.5
    assert large.dispatched_us <= small.dispatched_us  # type: ignore[operator]


def test_while_decode_workers_are_full_nobody_is_asked_again_and_again() -> None:
    """All prefill workers stand idle for ten seconds, and forty requests wait."""
    stage = stage_of(20, 1, decode_s=10.0)
    requests = [stage.arrive(2048) for _ in range(44)]
    assert sum(request.waits for request in requests) == 40
    stage.time.advance(9.0)
    assert max(request.asked for request in requests) <= ASKED_MAX_PER_S * 9.0 + 1


def test_a_request_is_woken_by_the_end_of_a_decode_and_not_by_a_look() -> None:
    stage = stage_of(2, 1, decode_s=1.0)
    requests = [stage.arrive(4096) for _ in range(3)]
    assert [request.waits for request in requests] == [False, False, True]
    while requests[2].waits:
        stage.time.turn()
    assert requests[0].done
    ended_us = next(
        op.at_us
        for op in stage.said
        if isinstance(op, Finished) and op.request_id == requests[0].decision.decode.placed.request_id  # type: ignore[union-attr]
    )
    assert requests[2].dispatched_us is not None
    assert abs(requests[2].dispatched_us - ended_us) < 100


def test_plain_workers_take_what_decode_workers_have_no_room_for() -> None:
    stage = stage_of(1, 1, decode_s=100.0)
    stage.put_worker("plain", role="plain")
    requests = [stage.arrive(4096) for _ in range(8)]
    stage.time.advance(5.0)
    decided = [request.decision for request in requests]
    assert all(decision is not None for decision in decided)
    assert sum(decision.decode is not None for decision in decided if decision is not None) == 2
