"""Tickets that end are passed over, and do not pile up."""

from policies import Ticket
from policies.state.waiting_lines import SPARE, Heap, Line, Lines, OwnLines


def ticket(request_id: str, key_us: int, *, slot: int = -1, lane: str = "|", flow: str = "low/one") -> Ticket:
    return Ticket(
        key_us=key_us,
        arrived_us=0,
        request_id=request_id,
        at_us=1,
        replica="one",
        lane=lane,
        slot=slot,
        flow=flow,
        service_us=1,
        uncached_tokens=1,
        context_tokens=1,
    )


def by_id(*tickets: Ticket) -> dict[str, Ticket]:
    return {ticket.request_id: ticket for ticket in tickets}


def test_a_heap_passes_over_what_has_ended_or_was_said_again() -> None:
    old, again, other = ticket("a", 1), ticket("a", 9), ticket("b", 5)
    heap, waiting = Heap(), by_id(again, other)
    for each in (old, again, other):
        heap.put(each.key_us, each)
    heap.drop(waiting)
    assert heap.first(waiting) is other


def test_a_heap_of_ended_tickets_is_made_anew() -> None:
    """One request that is given another key 1,000 times leaves no more behind than the spare ones."""
    heap, waiting = Heap(), by_id(ticket("first", 0))
    heap.put(0, waiting["first"])
    for key_us in range(1, 1001):
        again = ticket("again", key_us)
        heap.put(key_us, again)
        waiting["again"] = again
        if key_us > 1:
            heap.drop(waiting)
        assert len(heap.entries) <= 2 * heap.live + SPARE + 1
    assert heap.live == 2
    assert heap.first(waiting) is waiting["first"]


def test_a_line_has_a_heap_for_each_flow_of_which_somebody_waits() -> None:
    one, two = ticket("a", 1), ticket("b", 2, flow="high/one")
    line = Line()
    line.put(one)
    line.put(two)
    assert {name: list(flows) for name, flows in line.classes.items()} == {
        "low": ["low/one"],
        "high": ["high/one"],
    }
    assert not line.drop(one, by_id(two))
    assert line.classes.keys() == {"high"}
    assert line.drop(two, {})


def test_lines_are_found_by_worker_and_by_lane() -> None:
    this, any_of, other = ticket("a", 1, slot=3), ticket("b", 2), ticket("c", 3, lane="tiny|")
    lines, waiting = Lines(), by_id(this, any_of, other)
    for each in waiting.values():
        lines.put(each)
    found = [line.classes["low"]["low/one"].first(waiting) for line in lines.at(3, ("|", "large|"))]
    assert found == [any_of, this]
    assert lines.at(4, ()) == []
    assert lines.waits_for(3)
    lines.drop(this, by_id(any_of, other))
    lines.drop(other, by_id(any_of))
    assert not lines.waits_for(3)
    assert lines.at(3, ("tiny|",)) == []


def test_a_replicas_own_tickets_are_also_found_by_lane_alone_and_by_flow() -> None:
    this, any_of = ticket("a", 1, slot=3), ticket("b", 2, flow="high/one")
    waiting = by_id(this, any_of)
    own = OwnLines(waiting.values())
    assert list(own.flows) == ["low/one", "high/one"]
    assert own.flows["low/one"].first(waiting) is this
    (line,) = own.of_lanes(("|", "tiny|"))
    assert line.classes["low"]["low/one"].first(waiting) is this
    assert line.classes["high"]["high/one"].first(waiting) is any_of
    del waiting["a"]
    own.drop(this, waiting)
    assert list(own.flows) == ["high/one"]
    del waiting["b"]
    own.drop(any_of, waiting)
    assert own.of_lanes(("|",)) == []
