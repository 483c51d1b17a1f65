"""Vectors publish other replicas' loads: their sum, in any order, equals their owners' counts."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Finished, FirstToken, Left, LoadVector, Placed
from policies.state.load_rows import CELLS_MAX, COLUMNS, NONE, SUMS, LoadRows, packed, unpacked
from policies.state.loads import LEADERS_MAX, Loads
from radix import chain_bytes

MS = 1000
START = 1_000_000_000
WORKERS = ("a:1", "b:1", "c:1")
NOTHING = (0,) * len(COLUMNS)
Said = Placed | FirstToken | Finished | Left | LoadVector


def observer(own: str = "") -> Loads:
    loads = Loads(own=own)
    loads.ensure(len(WORKERS) - 1)
    return loads


def placed(request_id: str, at_us: int, worker: int = 0, replica: str = "one", blocks: int = 4) -> Placed:
    path = chain_bytes(request_id.encode() * blocks, root=1, block_bytes=len(request_id))
    return Placed(request_id, at_us, WORKERS[worker], replica, 200 * MS, 100, 200, (path,))


def take(loads: Loads, op: Said) -> None:
    match op:
        case Placed():
            loads.placed(op, WORKERS.index(op.worker))
        case FirstToken():
            loads.first_token(op)
        case Finished():
            loads.finished(op)
        case Left():
            loads.left(op)
        case LoadVector():
            loads.told(op, WORKERS.index)


def vector(owner: Loads, at_us: int, *, full: bool = False) -> LoadVector:
    return owner.own_vector(at_us, WORKERS.__getitem__, full=full)


def row(worker: str = "a:1", **numbers: int) -> tuple[tuple[str, ...], bytes]:
    return (worker,), packed([numbers.get(name, 0) for name in COLUMNS])


def sums(loads: Loads) -> list[list[float]]:
    return loads._sums[:, : len(WORKERS)].tolist()


def state(loads: Loads, now_us: int = START + 10_000 * MS) -> tuple[object, ...]:
    slots = np.arange(len(WORKERS))
    heads = [loads.head(slot, now_us) for slot in range(len(WORKERS))]
    return (
        sums(loads),
        loads.backlog_s(slots, now_us).tolist(),
        [
            (head.placed_us, head.elapsed_s, head.service_s, head.context_tokens) if head else None
            for head in heads
        ],
        [loads.oldest_prefill_us(slot) for slot in range(len(WORKERS))],
        loads.rates(now_us)[0][: len(WORKERS)].tolist(),
        sorted((slot, key) for slot in range(len(WORKERS)) for key, _ in loads.prefills(slot)),
    )


# One vector.


def test_a_vector_takes_the_place_of_what_its_replica_placed_until_then() -> None:
    """One of two requests of 200 ms has its first token, which is not published."""
    owner, other = observer("one"), observer("two")
    for op in (placed("r", START), placed("s", START + 1)):
        take(owner, op)
        take(other, op)
    take(owner, FirstToken("r", START + 50 * MS))

    take(other, vector(owner, START + 60 * MS))

    assert sums(other) == sums(owner)
    assert other.requests == {}
    head = other.head(0, START + 60 * MS)
    assert head is not None
    assert (head.request_id, head.placed_us, head.service_s, head.context_tokens) == ("", START + 1, 0.2, 200)
    assert other.backlog_at_s(0, START + 150 * MS) == owner.backlog_at_s(0, START + 150 * MS) == 0.1
    assert other.prefilled_us(0) == START + 50 * MS


def test_what_is_placed_after_a_vector_counts_on_top_of_it() -> None:
    owner, other = observer("one"), observer("two")
    take(owner, placed("r", START))
    take(other, vector(owner, START + 5, full=True))
    late = placed("s", START + 6)
    for _ in range(2):
        take(other, late)
    assert other.inflight_requests[0] == 2
    take(other, placed("t", START + 4))
    assert other.inflight_requests[0] == 2, "the vector would have it, were it in flight"
    assert other.rates(START + MS)[0][0] == 2 / 16, "but it arrived"


def test_what_is_placed_at_a_worker_counts_until_a_row_of_that_worker() -> None:
    owner, other = observer("one"), observer("two")
    ends = placed("r", START), placed("s", START + 1, 1), FirstToken("r", START + 2), Finished("r", START + 3)
    for op in ends:
        take(owner, op)
    partial = vector(owner, START + 4)
    assert partial.workers == ("a:1",)
    for op in (partial, *ends[:2]):
        take(other, op)
    assert sums(other) == sums(owner)


def test_a_vector_says_where_there_is_less_than_before() -> None:
    owner, other = observer("one"), observer("two")
    for op in (placed("r", START), placed("s", START + 1, 1)):
        take(owner, op)
        take(other, op)
    assert other.told(vector(owner, START + 2), WORKERS.index) == []
    take(owner, Finished("s", START + 3))
    take(owner, FirstToken("r", START + 3))
    assert other.told(vector(owner, START + 4), WORKERS.index) == [0, 1]
    take(owner, Finished("r", START + 5))
    owner.changed.clear()
    assert other.told(vector(owner, START + 6, full=True), WORKERS.index) == [0]
    assert not any(map(any, sums(other)))


def test_what_a_full_vector_does_not_name_is_not_in_flight_and_an_older_row_does_not_come_back() -> None:
    owner, other = observer("one"), observer("two")
    take(owner, placed("r", START))
    first = vector(owner, START + 5)
    take(owner, Finished("r", START + 6))
    take(owner, placed("s", START + 7, 1))
    owner.changed.clear()
    take(other, vector(owner, START + 8, full=True))
    take(other, first)
    assert sums(other) == sums(owner)


def test_a_replica_does_not_hear_its_own_vectors() -> None:
    """Those of its former life, under the same id."""
    loads = observer("one")
    take(loads, placed("r", START))
    assert loads.told(LoadVector("one", START + 5, *row(inflight_requests=7)), WORKERS.index) == []
    assert loads.inflight_requests[0] == 1


def test_a_replica_that_left_takes_its_rows_with_it_and_its_older_vectors_are_void() -> None:
    owner, other = observer("one"), observer("two")
    take(owner, placed("r", START))
    take(other, vector(owner, START + 5, full=True))
    assert other.replicas() == {"one"}
    assert other.left(Left("one", START + 6)) == [0]
    take(other, LoadVector("one", START + 6, *row(inflight_requests=1)))
    take(other, placed("s", START + 6))
    assert (sums(other), other.replicas(), other.head(0, START + 9)) == (sums(observer()), set(), None)
    take(other, vector(owner, START + 7, full=True))
    assert sums(other) == sums(owner)


def test_rows_that_nobody_confirms_are_given_up_and_so_are_those_of_the_future() -> None:
    """A replica with anything in flight sends a full vector every few seconds."""
    other = Loads(memory_us=30_000 * MS)
    other.ensure(2)
    take(other, LoadVector("one", START, *row(inflight_requests=1)))
    take(other, LoadVector("two", START + 10**9, *row(inflight_requests=1)))
    assert other.inflight_requests[0] == 2
    other.collect(START + MS, 10**12)
    assert other.inflight_requests[0] == 1
    other.collect(START + 31_000 * MS, 10**12)
    assert other.inflight_requests[0] == 0


@pytest.mark.parametrize(
    ("workers", "numbers"),
    [
        (("a:1",), b""),
        (("a:1",), bytes(72)),
        (("a:1", "a:1"), bytes(72)),
        row(prefill_requests=2, inflight_requests=1),
    ],
)
def test_a_vector_that_contradicts_itself_is_refused_and_changes_nothing(
    workers: tuple[str, ...], numbers: bytes
) -> None:
    loads = observer()
    before = state(loads)
    with pytest.raises(ValueError, match="load vector"):
        loads.told(LoadVector("one", START, workers, numbers), WORKERS.index)
    assert state(loads) == before


def test_numbers_beyond_32_bits_are_told_as_the_greatest_and_no_time_is_in_the_future() -> None:
    (told,) = unpacked(LoadVector("one", START, *row(prefill_us=10**12, prefill_tokens=-1)))
    assert told[:3] == (NONE, 0, 0)
    loads = observer()
    numbers = {"prefill_requests": 1, "inflight_requests": 1, "head_us": 10**12, "done_us": 0}
    loads.told(LoadVector("one", START, *row(**numbers)), WORKERS.index)
    assert loads.prefilled_us(0) == START
    loads.told(LoadVector("one", START + 1, *row("b:1", done_us=NONE)), WORKERS.index)
    assert loads.prefilled_us(1) == 0


def test_more_replicas_than_there_is_memory_for_are_refused() -> None:
    rows, slots = LoadRows(), CELLS_MAX // 7
    rows.resize(np.zeros((5, slots)), np.zeros(slots))
    for number in range(7):
        rows.book(f"r{number}", 0)
    with pytest.raises(ValueError, match="too many"):
        rows.book("r8", 0)


def test_a_freed_slot_has_no_rows() -> None:
    other = observer()
    take(other, LoadVector("one", START, *row(prefill_requests=1, inflight_requests=1)))
    take(other, LoadVector("one", START + 1, *row()))
    other.drop(0)
    take(other, LoadVector("one", START, *row(inflight_requests=3)))
    assert other.inflight_requests[0] == 3, "of the worker that has the slot now"


# Followers.


def test_a_leader_in_a_vector_leads_until_the_vector_says_that_it_is_prefilled() -> None:
    owner, other = observer("one"), observer("two")
    ops = (placed("r", START), placed("s", START + 1), placed("t", START + 2, 1))
    for op in ops:
        take(owner, op)
        take(other, op)
    take(other, vector(owner, START + 3))
    assert [(key, request.path) for key, request in other.prefills(0)] == [
        ("r", ops[0].paths[0]),
        ("s", ops[1].paths[0]),
    ]
    take(owner, FirstToken("r", START + 4))
    take(other, vector(owner, START + 5))
    assert [key for key, _ in other.prefills(0)] == ["s"]
    take(owner, Finished("s", START + 6, START + 6))
    take(other, vector(owner, START + 7))
    assert [key for key, _ in other.prefills(0)] == []
    assert [key for key, _ in other.prefills(1)] == ["t"]
    take(other, Left("one", START + 8))
    assert [key for key, _ in other.prefills(1)] == []


def test_leaders_are_bounded() -> None:
    owner, other = observer("one"), observer("two")
    for number in range(LEADERS_MAX + 10):
        op = placed(f"r{number}", START + number)
        take(owner, op)
        take(other, op)
    take(other, vector(owner, START + MS))
    leaders = [key for key, _ in other.prefills(0)]
    assert LEADERS_MAX // 2 <= len(leaders) <= LEADERS_MAX
    assert leaders[-1] == f"r{LEADERS_MAX + 9}"


# Any order.

KINDS = ("place", "place", "place", "first", "first", "finish", "answer", "vector", "vector", "full", "left")
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1), st.integers(0, 11)), max_size=40)


def history(drawn: list[tuple[str, int, int]]) -> tuple[dict[str, Loads], list[Said]]:
    """Two replicas and all that they say, the untold included, at growing times; the last word is full."""
    owners = {name: observer(name) for name in ("one", "two")}
    said: list[Said] = []
    now_us = START
    for number, (kind, which, subject) in enumerate(drawn):
        name = ("one", "two")[which]
        owner = owners[name]
        now_us += 20 * MS
        mine = sorted(owner.requests)
        if kind == "place":
            op: Said = placed(f"{number * 7 % 10}-{number}", now_us, subject % len(WORKERS), name)
        elif kind in ("vector", "full"):
            said.append(vector(owner, now_us, full=kind == "full"))
            continue
        elif kind == "left":
            op = Left(name, now_us)
            said.append(op)
            placements = {op.request_id: op for op in said if isinstance(op, Placed)}
            take(owner, op)
            for key in mine:
                now_us += 1
                again = placements[key]
                renewal = Placed(key, now_us, again.worker, name, again.service_us, 100, 200)
                take(owner, renewal)
            owner.changed.update(range(len(WORKERS)))
            continue
        elif not mine:
            continue
        else:
            key = mine[subject % len(mine)]
            if kind == "first":
                op = FirstToken(key, now_us)
            else:
                op = Finished(key, now_us, now_us if kind == "answer" else 0)
        take(owner, op)
        said.append(op)
    for owner in owners.values():
        now_us += 20 * MS
        said.append(vector(owner, now_us, full=True))
    return owners, said


@given(steps, st.randoms(use_true_random=False), st.booleans())
def test_any_order_and_repetition_of_what_is_said_means_the_same(
    drawn: list[tuple[str, int, int]], random: Random, told: bool
) -> None:
    """The rule also holds for published first tokens and ends, beside replicas of an older version."""
    owners, said = history(drawn)
    heard = [op for op in said if told or not isinstance(op, FirstToken | Finished)]
    shuffled = heard * 2
    random.shuffle(shuffled)
    one, two = observer("three"), observer("four")
    for op in heard:
        take(one, op)
    for op in shuffled:
        take(two, op)
    assert state(two) == state(one)
    assert sums(one) == np.add(*map(sums, owners.values())).tolist()


@given(steps, st.integers(0, 40))
def test_at_every_vector_the_others_count_what_its_owner_counts(
    drawn: list[tuple[str, int, int]], until: int
) -> None:
    """For one replica, with its placements since then: in the order of the log there is nothing else."""
    owners, said = history([(kind, 0, subject) for kind, _, subject in drawn][:until])
    other = observer("three")
    for op in said:
        if not isinstance(op, FirstToken | Finished):
            take(other, op)
    now_us = START + 10_000 * MS
    owner = owners["one"]
    assert sums(other) == sums(owner)
    for slot in range(len(WORKERS)):
        assert other.backlog_at_s(slot, now_us) == owner.backlog_at_s(slot, now_us)
        assert other.oldest_prefill_us(slot) == owner.oldest_prefill_us(slot)


@given(steps, st.booleans())
def test_a_vector_has_the_sums_of_all_own_requests_beside_any_others(
    drawn: list[tuple[str, int, int]], vectors: bool
) -> None:
    """Replica one hears all of replica two: its vectors, or, of an older version, its ends one by one."""
    _, said = history(drawn)
    loads = observer("one")
    for op in said:
        if vectors or not isinstance(op, LoadVector):
            take(loads, op)
    now_us = START + 10_000 * MS
    told = loads.own_vector(now_us, WORKERS.__getitem__, full=True)
    rows = dict(zip(told.workers, unpacked(told), strict=True))
    for slot, worker in enumerate(WORKERS):
        inflight = [each for each in loads.requests.values() if (each.replica, each.slot) == ("one", slot)]
        waiting = [each for each in inflight if not each.prefilled_us]
        assert rows.get(worker, NOTHING)[:SUMS] == (
            sum(each.service_us for each in waiting),
            len(waiting),
            sum(each.uncached_tokens for each in waiting),
            len(inflight),
            sum(each.context_tokens for each in inflight),
        )
