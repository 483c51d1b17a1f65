"""Copies of hot prefixes: the savings of one more; it is made before the queue is that long."""

from math import exp

import numpy as np
import pytest

from policies import (
    FULL_ATTENTION,
    Candidates,
    Chosen,
    FirstToken,
    FleetRules,
    FleetState,
    Placed,
    RequestView,
    ServiceModel,
    WorkerPut,
    make_policy,
    place,
)
from policies.fleet.hot_prefixes import BRANCHES_MIN, SESSION_BLOCKS, STARTS_MAX, WINDOW_S
from radix import chain_bytes

START = 1_000_000_000
WORKERS = ("a:1", "b:1", "c:1", "d:1")
HEAD = (1, 2, 3, 4)
"""Blocks of the start that all prompts share: 1.024 s of prefill."""


def path(*blocks: int) -> bytes:
    return chain_bytes(b"".join(block.to_bytes(4, "big") * 256 for block in blocks), 7)


def fleet_of(horizon_s: float) -> FleetState:
    model = ServiceModel(a_s=0.0, b_s=0.001, c0_tokens=1e9)
    fleet = FleetState(FleetRules(copy_horizon_s=horizon_s, default_model=model, congestion_max_per_s=0.0))
    for worker in WORKERS:
        fleet.apply(WorkerPut(worker, 1, "static", f"http://{worker}"))
    return fleet


def put(fleet: FleetState, name: int, worker: str, *, safe_blocks: int = 4, service_us: int = 0) -> Placed:
    """A request with the common start and a block of its own."""
    op = Placed(
        f"r{name}",
        START,
        worker,
        "one",
        service_us,
        256,
        300,
        (path(*HEAD, 100 + name),),
        safe_blocks=safe_blocks,
    )
    fleet.apply(op)
    return op


def make_hot(fleet: FleetState) -> None:
    """Enough requests on one worker that the start is one; no load is left."""
    for name in range(BRANCHES_MIN):
        put(fleet, name, "a:1")
        fleet.apply(FirstToken(f"r{name}", START))


def seen(fleet: FleetState, prompt: bytes, now_us: int = START) -> Candidates:
    slots = np.array([worker.slot for worker in fleet.workers()], dtype=np.intp)
    return fleet.candidates(slots, (prompt,), FULL_ATTENTION, len(prompt) * 32.0, 256.0, now_us)


def saved_s(fleet: FleetState, prompt: bytes = path(*HEAD, 999), now_us: int = START) -> float | None:
    copying = seen(fleet, prompt, now_us).copying
    return None if copying is None else copying.saved_s


def test_nothing_is_counted_by_default() -> None:
    fleet = fleet_of(0.0)
    make_hot(fleet)
    put(fleet, 50, "a:1", service_us=4_000_000)
    put(fleet, 51, "a:1")
    assert saved_s(fleet) is None


def test_a_copy_saves_the_wait_at_the_holders_beyond_the_mean() -> None:
    """A backlog of 4 s on one of four workers is 3 s above the mean; a second holder halves the wait."""
    fleet = fleet_of(WINDOW_S)
    make_hot(fleet)
    put(fleet, 50, "a:1", service_us=4_000_000)
    assert saved_s(fleet) == 0.0
    put(fleet, 51, "a:1")
    assert saved_s(fleet) == pytest.approx(3.0 / 2)
    later_us = START + round(WINDOW_S * 1e6)
    assert saved_s(fleet, now_us=later_us) == pytest.approx(1.5 * exp(-1.0))
    put(fleet, 52, "b:1", safe_blocks=0)
    assert saved_s(fleet) == pytest.approx(3.0 / 2 / 3), "half of the wait, and a third holder"


def test_a_repeated_operation_counts_once() -> None:
    fleet = fleet_of(WINDOW_S)
    make_hot(fleet)
    put(fleet, 50, "a:1", service_us=4_000_000)
    op = put(fleet, 51, "a:1")
    fleet.apply(op)
    assert saved_s(fleet) == pytest.approx(1.5)


def test_sessions_are_neither_counted_nor_copied() -> None:
    fleet = fleet_of(WINDOW_S)
    make_hot(fleet)
    put(fleet, 50, "a:1", service_us=4_000_000)
    put(fleet, 51, "a:1", safe_blocks=5 + SESSION_BLOCKS)
    assert saved_s(fleet) == 0.0
    put(fleet, 52, "a:1")
    session = path(*HEAD, *range(2_000, 2_001 + SESSION_BLOCKS))
    fleet.apply(Placed("s", START, "b:1", "one", 0, 256, 300, (session,)))
    assert saved_s(fleet) is not None
    assert saved_s(fleet, session) is None


@pytest.mark.parametrize(("horizon_s", "worker"), [(0.0, "a:1"), (WINDOW_S, "b:1")])
def test_a_copy_is_made_before_the_queue_is_longer_than_it_takes(horizon_s: float, worker: str) -> None:
    """The holder is busy for 0.9 s, and the copy takes 1.024 s: it pays by the savings of others."""
    fleet = fleet_of(horizon_s)
    make_hot(fleet)
    put(fleet, 50, "a:1", service_us=900_000)
    for name in range(60, 70):
        put(fleet, name, "a:1")
    for busy in ("c:1", "d:1"):
        fleet.apply(Placed(busy, START, busy, "one", 5_000_000, 1, 1, (b"",)))
    view = RequestView(1, 1, 5 * 256.0, 10.0, 0)
    chosen = place(view, seen(fleet, path(*HEAD, 999)), make_policy("expected_cost"))
    assert isinstance(chosen, Chosen)
    assert fleet.at_slot(chosen.slot).worker_id == worker


def test_numbers_and_columns_save_the_same() -> None:
    fleet = fleet_of(WINDOW_S)
    make_hot(fleet)
    put(fleet, 50, "a:1", service_us=4_000_000)
    put(fleet, 51, "a:1")
    view = seen(fleet, path(*HEAD, 999))
    columns = view.times(1280.0).saved_s
    numbers = [timing.saved_s for timing in view.timings(1280.0, view.slow.few)]
    assert numbers == list(np.asarray(columns)) == [0.0, 1.5, 1.5, 1.5]


def test_what_is_remembered_is_bounded() -> None:
    fleet = fleet_of(WINDOW_S)
    for head in range(STARTS_MAX + 3):
        for own in range(BRANCHES_MIN + 1):
            prompt = path(10_000 + head, 100 + own)
            fleet.apply(Placed(f"{head}/{own}", START, "a:1", "one", 0, 1, 1, (prompt,)))
    assert len(fleet.hot._starts) == STARTS_MAX
