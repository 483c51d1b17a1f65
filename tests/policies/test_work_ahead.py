"""Sums of work by key, made when they are asked for."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from policies import Ticket, WorkAhead

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
    """Fewer than 16 tickets: one change makes the sums anew. Each has another power of two as its work."""
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
