"""Sums of work by place and key, made when they are asked for."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from policies import Ticket, WorkAhead
from policies.state.work_ahead import SMALL

TICKET = Ticket(
    key_us=0,
    arrived_us=0,
    request_id="",
    at_us=1,
    replica="one",
    lane="|",
    slot=-1,
    flow="low/one",
    service_us=0,
    uncached_tokens=7,
    context_tokens=9,
)


def tickets(keys_us: list[int]) -> list[Ticket]:
    return [
        structs.replace(TICKET, request_id=f"r{number}", key_us=key_us, service_us=2**number)
        for number, key_us in enumerate(keys_us)
    ]


@given(st.lists(st.integers(0, 20), max_size=15), st.integers(0, 21), st.integers(0, 15))
def test_a_short_queue_is_always_exact(keys_us: list[int], key_us: int, dropped: int) -> None:
    """Fewer than 16 tickets: each change computes the sums again. Their work: different powers of two."""
    work, waiting = WorkAhead(), tickets(keys_us)
    for each in waiting:
        work.put(each)
    work.before_us(key_us)
    for each in waiting[:dropped]:
        work.drop(each)
    left = waiting[dropped:]
    assert work.before_us(key_us) == sum(each.service_us for each in left if each.key_us < key_us)
    assert (work.count, work.tokens) == (len(left), 7 * len(left))
    assert work.service_us == sum(each.service_us for each in left)


PLACES = 5


@st.composite
def drawn_tables(draw: st.DrawFn, most: int) -> tuple[WorkAhead, list[tuple[int, Ticket]]]:
    """Some tickets at some places, of which some have left again; and those that are left."""
    rows = draw(
        st.lists(st.tuples(st.integers(0, PLACES - 1), st.integers(0, 20), st.booleans()), max_size=most)
    )
    work = WorkAhead()
    put = list(zip([place for place, _, _ in rows], tickets([key_us for _, key_us, _ in rows]), strict=True))
    for place, ticket in put:
        work.put(ticket, place)
    if draw(st.booleans()):
        work.around(draw(st.integers(0, 21)))
    for (_, ticket), (_, _, leaves) in zip(put, rows, strict=True):
        if leaves:
            work.drop(ticket)
    return work, [row for row, (_, _, leaves) in zip(put, rows, strict=True) if not leaves]


def naive(left: list[tuple[int, Ticket]], place: int, key_us: int) -> tuple[int, int]:
    """Work before a key at a place, and how many tickets are behind it."""
    here = [ticket for at, ticket in left if at == place]
    ahead_us = sum(ticket.service_us for ticket in here if ticket.key_us < key_us)
    return ahead_us, sum(ticket.key_us > key_us for ticket in here)


@given(drawn_tables(15), st.lists(st.tuples(st.integers(0, PLACES), st.integers(0, 21)), max_size=8))
def test_each_place_has_its_own_sums(
    drawn: tuple[WorkAhead, list[tuple[int, Ticket]]], asked: list[tuple[int, int]]
) -> None:
    """One of the places never had a request: it is behind the last of the table."""
    work, left = drawn
    expected = [naive(left, place, key_us) for place, key_us in asked]
    assert [work.around(key_us, place) for place, key_us in asked] == expected
    places, keys_us = (np.array([row[column] for row in asked], dtype=np.int64) for column in (0, 1))
    ahead_us, behind = work.around_all(places, keys_us)
    assert list(zip(ahead_us.tolist(), behind.tolist(), strict=True)) == expected


@pytest.mark.parametrize("count", [SMALL - 1, SMALL, SMALL + 1, 3 * SMALL])
def test_python_and_numpy_sort_the_same_table(count: int) -> None:
    random = Random(count)
    left = [
        (random.randrange(PLACES), structs.replace(ticket, key_us=random.randrange(50), service_us=number))
        for number, ticket in enumerate(tickets([0] * count))
    ]
    work = WorkAhead()
    for place, ticket in left:
        work.put(ticket, place)
    asked = [(place, key_us) for place in range(PLACES) for key_us in (0, 1, 25, 49, 50)]
    expected = [naive(left, place, key_us) for place, key_us in asked]
    assert [work.around(key_us, place) for place, key_us in asked] == expected
    places, keys_us = np.array(asked, dtype=np.int64).T
    ahead_us, behind = work.around_all(places, keys_us)
    assert list(zip(ahead_us.tolist(), behind.tolist(), strict=True)) == expected


def test_where_nobody_waits_nothing_is_ahead_or_behind() -> None:
    ahead_us, behind = WorkAhead().around_all(np.arange(3), np.full(3, 7))
    assert WorkAhead().around(7) == (0, 0)
    assert ahead_us.tolist() == behind.tolist() == [0.0] * 3


def test_a_long_queue_is_summed_anew_only_after_a_sixteenth_of_it_has_changed() -> None:
    work, waiting = WorkAhead(), tickets([0] * 64)
    for each in waiting:
        work.put(each)
    assert work.around(-1)[1] == 64
    for each in waiting[:3]:
        work.drop(each)
    assert work.around(-1)[1] == 64
    work.drop(waiting[3])
    assert work.around(-1)[1] == 60
