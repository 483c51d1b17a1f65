"""Reservations count from placement, over all replicas, and are released exactly once."""

from itertools import permutations
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes.bytecodes import bytecodes
from hypothesis import given
from hypothesis import strategies as st

from policies import Finished, FirstToken, Left, Placed
from policies.state.loads import RATE_WINDOW_S, Loads
from radix import HASH_BYTES

MS = 1000
SECOND = 1_000_000
START = 1_000 * SECOND


def placed(
    request_id: str,
    at_us: int = START,
    *,
    replica: str = "one",
    service_us: int = 200 * MS,
    tokens: int = 100,
    paths: tuple[bytes, ...] = (b"",),
) -> Placed:
    return Placed(request_id, at_us, "w", replica, service_us, tokens, 2 * tokens, paths)


def renewed(request_id: str, at_us: int, **more: Any) -> Placed:
    """The same reservation again, by a replica that was given up while it lived."""
    return placed(request_id, at_us, paths=(), **more)


def loads_after(ops: list[Placed | FirstToken | Finished | Left], slot: int = 0, own: str = "") -> Loads:
    loads = Loads(own=own)
    loads.ensure(slot)
    for op in ops:
        match op:
            case Placed():
                loads.placed(op, slot)
            case FirstToken():
                loads.first_token(op)
            case Finished():
                loads.finished(op)
            case Left():
                loads.left(op)
    return loads


def merge(loads: Loads, other: Loads) -> None:
    """Merge another fold's history of slot 0."""
    history = other.dump_history()
    loads.merge_history(0, *history.of(0), history.returns_of(0))


def state(loads: Loads, now_us: int = START + SECOND, slot: int = 0) -> tuple[float, ...]:
    arrivals_per_s, utilisation = loads.rates(now_us)
    return (
        loads.backlog_at_s(slot, now_us),
        float(loads.prefill_tokens[slot]),
        float(loads.inflight_requests[slot]),
        float(loads.inflight_tokens[slot]),
        float(arrivals_per_s[slot]),
        float(utilisation[slot]),
    )


def test_a_request_is_reserved_from_placement_to_its_end() -> None:
    """200 ms of prefill and 100 uncached tokens until the first token; 200 tokens until the end."""
    loads = loads_after([placed("a")])
    assert (loads.backlog_at_s(0, START), int(loads.prefill_tokens[0])) == (0.2, 100)
    assert (int(loads.inflight_requests[0]), int(loads.inflight_tokens[0])) == (1, 200)

    loads.first_token(FirstToken("a", START + 150 * MS))
    assert (loads.backlog_at_s(0, START), int(loads.prefill_tokens[0])) == (0.0, 0)
    assert (int(loads.inflight_requests[0]), int(loads.inflight_tokens[0])) == (1, 200)

    loads.finished(Finished("a", START + SECOND))
    assert (int(loads.inflight_requests[0]), int(loads.inflight_tokens[0])) == (0, 0)
    assert loads.requests == {}


def test_backlog_drains_with_time_but_only_the_heads_own_share() -> None:
    """Three prefills of 200 ms: after 100 ms 500 remain, and without a first token never less than 400."""
    loads = loads_after([placed("a"), placed("b", START + 1), placed("c", START + 2)])
    assert loads.backlog_at_s(0, START) == pytest.approx(0.6)
    assert loads.backlog_at_s(0, START + 100 * MS) == pytest.approx(0.5)
    assert loads.backlog_at_s(0, START + 60 * SECOND) == pytest.approx(0.4)

    loads.first_token(FirstToken("a", START + 200 * MS))
    assert loads.backlog_at_s(0, START + 200 * MS) == pytest.approx(0.4)
    assert loads.backlog_at_s(0, START + 300 * MS) == pytest.approx(0.3)


def test_the_backlog_of_many_workers_is_the_backlog_of_each() -> None:
    loads = Loads()
    for slot in range(40):
        loads.ensure(slot)
        for number in range(slot % 3):
            loads.placed(placed(f"{slot}-{number}", START + number), slot)
    slots = np.arange(40)
    now_us = START + 50 * MS
    assert loads.backlog_s(slots, now_us).tolist() == [loads.backlog_at_s(slot, now_us) for slot in range(40)]


def test_the_oldest_unfinished_prefill_is_known() -> None:
    loads = loads_after([placed("b", START + 5), placed("a", START)])
    assert loads.oldest_prefill_us(0) == START
    loads.first_token(FirstToken("a", START + 10))
    assert loads.oldest_prefill_us(0) == START + 5
    loads.finished(Finished("b", START + 20))
    assert loads.oldest_prefill_us(0) > START + 10**12


def test_when_a_worker_last_ended_a_prefill_is_known_and_giving_up_ends_none() -> None:
    loads = loads_after([placed("a"), placed("b")])
    assert loads.prefilled_us(0) == 0
    loads.finished(Finished("a", START + 5))
    assert loads.prefilled_us(0) == 0
    loads.first_token(FirstToken("b", START + 7))
    assert loads.prefilled_us(0) == START + 7


def test_operations_of_one_request_commute_and_repeat_harmlessly() -> None:
    ops: list[Placed | FirstToken | Finished | Left] = [
        placed("a"),
        FirstToken("a", START + 100 * MS),
        Finished("a", START + 200 * MS),
    ]
    expected = state(loads_after(ops))
    for order in permutations(ops):
        assert state(loads_after([*order, *order])) == expected


def test_an_end_that_tells_of_the_first_token_is_both_words_in_one() -> None:
    """Request a was done at 100 ms: b, placed before that, is the head since then, and has had 50 ms."""
    first, end = FirstToken("a", START + 100 * MS), Finished("a", START + 120 * MS)
    both = Finished("a", end.at_us, first.at_us)
    now_us = START + 150 * MS
    for ops in permutations((placed("a"), placed("b", START + 1), both)):
        loads = loads_after([*ops, *ops])
        assert loads.backlog_at_s(0, now_us) == 0.15
        assert state(loads) == state(loads_after([placed("a"), placed("b", START + 1), first, end]))


@pytest.mark.parametrize("own", ["", "one"])
def test_a_replica_that_left_takes_its_reservations_with_it_and_nobody_elses(own: str) -> None:
    loads = loads_after([placed("a"), placed("b", replica="two"), Left("one", START + 10)], own=own)
    assert set(loads.requests) == {"b"}
    loads.placed(placed("late", START + 5), 0)
    assert set(loads.requests) == {"b"}
    loads.placed(placed("again", START + 11), 0)
    assert set(loads.requests) == {"b", "again"}


def test_a_replica_that_was_given_up_renews_what_it_still_has_in_flight() -> None:
    """Prefilling or decoding, and it arrived once."""
    before = loads_after([placed("a"), placed("b", START + 1), FirstToken("b", START + 2)])
    loads = loads_after(
        [placed("a"), placed("b", START + 1), FirstToken("b", START + 2), Left("one", START + 9)]
    )
    assert loads.requests == {}
    loads.placed(renewed("a", START + 10), 0)
    loads.placed(renewed("b", START + 10), 0)
    assert state(loads) == state(before)
    for request_id in ("a", "b"):
        loads.finished(Finished(request_id, START + SECOND))
        loads.placed(renewed(request_id, START + 2 * SECOND), 0)
    assert loads.requests == {}
    assert state(loads)[:4] == (0, 0, 0, 0)


def test_a_renewal_that_comes_before_the_replica_is_given_up_stands() -> None:
    loads = loads_after([placed("a"), renewed("a", START + 10), Left("one", START + 9)])
    assert set(loads.requests) == {"a"}
    loads.left(Left("one", START + 10))
    assert loads.requests == {}
    loads.placed(renewed("a", START + 10), 0)
    assert loads.requests == {}


def test_a_renewal_is_no_arrival_and_the_first_placement_is_one_also_after_it() -> None:
    loads = loads_after([renewed("a", START + 10)])
    assert loads.rates(START)[0][0] == 0
    loads.placed(placed("a"), 0)
    assert loads.rates(START)[0][0] == 1 / RATE_WINDOW_S
    assert loads.requests["a"].at_us == START + 10
    loads.placed(placed("a"), 0)
    assert loads.rates(START)[0][0] == 1 / RATE_WINDOW_S


def test_what_a_decode_worker_is_handed_is_no_arrival_although_it_keeps_the_prompt() -> None:
    """Nothing is prefilled there: it delays no request, and is not another request."""
    op = msgspec.structs.replace(placed("a"), service_us=0, uncached_tokens=0)
    loads = Loads()
    loads.ensure(0)
    assert not loads.placed(op, 0)
    assert op.paths
    assert loads.rates(START)[0][0] == 0
    assert loads.inflight_requests[0] == 1


def test_a_dumped_reservation_keeps_whether_it_arrived() -> None:
    """A placement in a snapshot and again in the log behind it is one arrival."""
    source = loads_after([placed("a"), renewed("b", START + 10)])
    loads = loads_after([op for op in source.dump_steps() if isinstance(op, Placed)])
    merge(loads, source)
    loads.placed(placed("a"), 0)
    assert loads.rates(START)[0][0] == 1 / RATE_WINDOW_S


@pytest.mark.parametrize("own", ["", "one"])
def test_what_was_given_up_is_not_revived_by_its_old_placement_when_nobody_remembers_why(own: str) -> None:
    """The replica's silence is long past and forgotten when the placement is read again."""
    loads = loads_after([placed("a")], own=own)
    now_us = START + 200 * SECOND
    loads.collect(now_us, 10**12)
    loads.left(Left("one", START))
    loads.collect(now_us + 30 * SECOND, 10**12)
    assert loads.left_us("one") == 0
    loads.placed(placed("a"), 0)
    assert loads.requests == {}
    loads.placed(renewed("a", now_us), 0)
    assert set(loads.requests) == {"a"}


def test_what_is_placed_before_the_renewal_of_another_one_is_ahead_of_it() -> None:
    loads = loads_after([placed("a"), renewed("a", START + 10), placed("b", START + 7)])
    assert loads.oldest_prefill_us(0) == START + 7


def test_the_head_of_a_renewed_queue_is_the_oldest_by_its_newest_placement() -> None:
    loads = loads_after([placed("a"), placed("b", START + 1), renewed("a", START + 10)])
    assert loads.oldest_prefill_us(0) == START + 1
    loads.first_token(FirstToken("b", START + 20))
    assert loads.oldest_prefill_us(0) == START + 10


def test_what_nobody_ever_finished_is_released_for_its_age() -> None:
    loads = loads_after([placed("a")])
    assert loads.collect(START + 9 * SECOND, 10 * SECOND) == 0
    assert loads.collect(START + 11 * SECOND, 10 * SECOND) == 1
    assert state(loads)[:4] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "before",
    [placed("b", START + 5 * SECOND), FirstToken("a", START + 5 * SECOND)],
    ids=["a newer one", "its first token"],
)
def test_what_is_seen_late_is_released_for_its_age_too(before: Placed | FirstToken) -> None:
    loads = loads_after([before, placed("a")])
    assert loads.collect(START + 11 * SECOND, 10 * SECOND) == 1
    assert "a" not in loads.requests


def test_what_ended_before_the_first_look_at_the_time_is_remembered_after_it() -> None:
    """A snapshot of a sibling that had not heard of the end must not bring the request back."""
    loads = loads_after([placed("a"), Finished("a", START + 1)])
    loads.collect(START + SECOND, 10 * SECOND)
    loads.placed(placed("a"), 0)
    assert not loads.requests


def test_memory_of_ended_requests_is_bounded() -> None:
    loads = Loads(memory_us=SECOND)
    loads.ensure(0)
    for number in range(50):
        now_us = START + number * SECOND
        loads.placed(placed(str(number), now_us), 0)
        loads.finished(Finished(str(number), now_us + 1))
        loads.left(Left(f"replica {number}", now_us))
        loads.collect(now_us, SECOND)
    assert len(loads._traces) + len(loads._old_traces) <= 2
    assert len(loads._left_us) <= 2
    loads.collect(START + 500 * SECOND, SECOND)
    assert len(loads._traces) + len(loads._old_traces) == 0


def test_rates_count_the_last_window_only() -> None:
    """16 requests of 0.5 s within 16 s: one a second, half busy; 16 s later nothing."""
    loads = Loads()
    loads.ensure(0)
    for number in range(RATE_WINDOW_S):
        loads.placed(placed(str(number), START + number * SECOND, service_us=500 * MS), 0)
    arrivals_per_s, utilisation = loads.rates(START + (RATE_WINDOW_S - 1) * SECOND)
    assert (arrivals_per_s[0], utilisation[0]) == (1.0, 0.5)
    arrivals_per_s, utilisation = loads.rates(START + (2 * RATE_WINDOW_S - 1) * SECOND)
    assert (arrivals_per_s[0], utilisation[0]) == (0.0, 0.0)


def test_an_arrival_that_is_seen_when_its_second_is_over_for_long_is_not_counted() -> None:
    """Its column is that of the second of the look by then."""
    loads = loads_after([placed("a")])
    later_us = START + RATE_WINDOW_S * SECOND
    assert loads.rates(later_us)[0][0] == 0.0
    loads.placed(placed("b"), 0)
    assert loads.rates(later_us)[0][0] == 0.0


def test_more_work_than_time_is_a_utilisation_above_one() -> None:
    loads = loads_after([placed("a", service_us=32 * SECOND)])
    assert loads.rates(START)[1][0] == 2.0


def test_who_found_at_least_half_of_the_prompt_has_returned() -> None:
    def found(request_id: str, blocks: int, *lengths: int) -> Placed:
        paths = tuple(bytes(HASH_BYTES * length) for length in lengths)
        return msgspec.structs.replace(placed(request_id, paths=paths), safe_blocks=blocks)

    ops = [found("a", 4, 8), found("b", 3, 8), found("c", 0), found("d", 2, 2, 2), found("e", 0, 0)]
    loads = loads_after([*ops, *ops])
    loads.ensure(1)
    assert loads.return_ratio(np.array([0])) == 2 / 4
    assert loads.return_ratio(np.array([1])) == 0.0
    target = loads_after([ops[0]])
    merge(target, loads)
    assert target.return_ratio(np.array([0])) == 2 / 4
    loads.rates(START + RATE_WINDOW_S * SECOND)
    assert loads.return_ratio(np.array([0])) == 0.0


def test_merging_a_dumped_rate_window_twice_changes_nothing() -> None:
    source = loads_after([placed("a"), placed("b", START + 3 * SECOND)])
    target = loads_after([placed("a")])
    for _ in range(2):
        merge(target, source)
        assert target.rates(START + 3 * SECOND)[0][0] == source.rates(START + 3 * SECOND)[0][0]


def test_a_rate_window_that_is_older_than_what_is_counted_here_is_not_merged() -> None:
    """Placed 15 s apart: of the older window only its newest second is still inside."""
    old = loads_after([placed("a"), placed("b", START + SECOND)])
    new = loads_after([placed("c", START + RATE_WINDOW_S * SECOND)])
    merge(new, old)
    assert new.rates(START + RATE_WINDOW_S * SECOND)[0][0] == 2 / RATE_WINDOW_S
    much_later = loads_after([placed("c", START + 100 * SECOND)])
    merge(much_later, old)
    assert much_later.rates(START + 100 * SECOND)[0][0] == 1 / RATE_WINDOW_S


def test_the_head_of_a_restored_slot_starts_when_the_prefill_before_it_was_done() -> None:
    """Request a was done at 150 ms and has ended; b, 200 ms of work, has had 50 ms of it at 200 ms."""
    done = START + 150 * MS
    ended = (placed("a"), FirstToken("a", done), Finished("a", done))
    source = loads_after([*ended, placed("b")])
    target = loads_after([placed("b")])
    merge(target, source)
    assert target.backlog_at_s(0, START + 200 * MS) == source.backlog_at_s(0, START + 200 * MS) == 0.15


def test_requests_that_come_and_go_while_they_are_written_are_left_out() -> None:
    """They come in order of their ids, which are sorted a number at a time."""
    ids = [f"r{number * 7919 % 1500:04}" for number in range(1500)]
    loads = loads_after([placed(request_id) for request_id in ids])
    steps = loads.dump_steps()
    written = [next(steps)]
    loads.finished(Finished("r1499", START + 1))
    loads.placed(placed("r0000-later"), 0)
    written += steps
    assert [op.request_id for op in written if isinstance(op, Placed)] == sorted(ids)[:-1]


def test_a_dropped_slot_starts_empty_for_the_next_worker() -> None:
    loads = loads_after([placed("a"), FirstToken("a", START + 1), Finished("a", START + 2)])
    loads.drop(0)
    assert state(loads, START + 2) == (0, 0, 0, 0, 0, 0)
    loads.placed(placed("b"), 0)
    assert loads.backlog_at_s(0, START) == 0.2


def test_requests_that_ended_at_a_dropped_slot_are_not_at_the_next_worker() -> None:
    """Those of this replica, which are as a rule remembered by their slot alone."""
    loads = loads_after([placed("a"), Finished("a", START + 2, START + 1)], own="one")
    assert (loads.last_slot_of("a"), loads.has_finished("a"), loads.prefilled("a")) == (0, True, True)
    loads.drop(0)
    assert loads.last_slot_of("a") == -1
    for op in (placed("a"), placed("a", START + 5)):
        assert not loads.placed(op, 0)
    loads.finished(Finished("a", START + 7, START + 6))
    assert not loads.requests
    assert state(loads, START + 2) == (0, 0, 0, 0, 0, 0)


def test_a_dropped_slot_costs_what_ended_there_and_not_what_ended_elsewhere() -> None:
    """Ten requests ended at worker 0; the drop does not look at those that ended at worker 1."""

    def cost(elsewhere: int) -> int:
        loads = Loads()
        loads.ensure(1)
        for number in range(10 + elsewhere):
            loads.placed(placed(f"r{number}"), int(number >= 10))
            loads.finished(Finished(f"r{number}", START + 1))
        work = bytecodes(lambda: loads.drop(0))
        assert len(loads._traces) == elsewhere
        return work

    assert cost(elsewhere=1000) == cost(elsewhere=10)


def test_a_request_that_came_to_another_slot_since_is_forgotten_with_that_one() -> None:
    """It was given up at slot 0, placed at slot 1 and given up there before `Placed` of slot 1 came."""
    loads = Loads()
    loads.ensure(1)
    loads.placed(placed("a"), 0)
    loads.left(Left("one", START))
    loads.left(Left("one", START + 2))
    loads.placed(placed("a", START + 1), 1)
    assert loads.last_slot_of("a") == 1
    loads.drop(0)
    assert loads.knows("a")
    loads.drop(1)
    assert not loads.knows("a")


def test_a_replica_that_left_costs_its_own_requests_and_not_those_of_others() -> None:
    def cost(others: int) -> int:
        loads = loads_after(
            [placed(f"r{number}", replica="one" if number < 10 else "two") for number in range(10 + others)]
        )
        work = bytecodes(lambda: loads.left(Left("one", START)))
        assert len(loads.requests) == others
        return work

    assert cost(others=1000) == cost(others=10)


def test_requests_in_flight_are_not_looked_at_before_the_oldest_of_them_is_too_old() -> None:
    """A look after 9 of 10 seconds costs the same for any number of requests in flight."""

    def after(requests: int) -> Loads:
        return loads_after(
            [placed(f"r{number}", START + min(number, 9) * SECOND) for number in range(requests)]
        )

    few, many = after(10), after(1000)
    assert bytecodes(lambda: few.collect(START + 9 * SECOND, 10 * SECOND)) == bytecodes(
        lambda: many.collect(START + 9 * SECOND, 10 * SECOND)
    )
    assert many.collect(START + 11 * SECOND, 10 * SECOND) == 1
    assert many.collect(START + 11 * SECOND, 10 * SECOND) == 0
    assert many.collect(START + 12 * SECOND, 10 * SECOND) == 1


def test_a_prefill_that_does_not_end_keeps_no_ended_ones_in_its_queue() -> None:
    """300,000 of them once took half a second of one core when the oldest ended."""
    loads = loads_after([placed("stuck")])
    for number in range(1, 1001):
        loads.placed(placed(f"r{number}", START + number), 0)
        loads.finished(Finished(f"r{number}", START + number))
    assert len(loads._prefilling[0]) == 1
    assert loads.oldest_prefill_us(0) == START
    assert [request_id for request_id, _ in loads.prefills(0)] == ["stuck"]


events = st.lists(
    st.tuples(
        st.sampled_from(["placed", "renewed", "first", "finished", "answered", "left"]),
        st.integers(0, 5),
        st.integers(0, 10).map(lambda n: START + n * 100 * MS),
    ),
    max_size=25,
)


@given(events, st.randoms(use_true_random=False), st.sampled_from(["", "replica 0"]))
def test_any_order_and_any_repetition_give_the_same_loads(
    drawn: list[tuple[str, int, int]], random: Random, own: str
) -> None:
    """A request is placed, prefilled and finished at one time, by one replica, and renewed often."""
    unique: dict[tuple[str, int, int], Placed | FirstToken | Finished | Left] = {}
    for kind, number, at_us in drawn:
        request_id, replica = f"r{number}", f"replica {number % 2}"
        op: Placed | FirstToken | Finished | Left = {  # type: ignore[assignment]
            "placed": placed(request_id, at_us, replica=replica, service_us=(number + 1) * 100 * MS),
            "renewed": renewed(request_id, at_us, replica=replica, service_us=(number + 1) * 100 * MS),
            "first": FirstToken(request_id, at_us),
            "finished": Finished(request_id, at_us),
            "answered": Finished(request_id, at_us + 100 * MS, at_us),
            "left": Left(replica, at_us),
        }[kind]
        unique.setdefault((kind, number, at_us if kind in ("renewed", "left") else 0), op)
    ops = list(unique.values())
    shuffled = ops * 2
    random.shuffle(shuffled)
    assert (
        state(loads_after(shuffled, own=own)) == state(loads_after(ops, own=own)) == state(loads_after(ops))
    )
