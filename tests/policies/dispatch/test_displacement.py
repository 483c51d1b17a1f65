"""Loss of a place in a full queue: a lesser class first, then the flow with the most above its due."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from policies import Waiting
from policies.state.fairness import Fairness, class_of
from policies.state.waiting import Tickets
from policies.state.waiting_lines import Ticket

WEIGHTS = {"high": 8.0, "normal": 4.0, "low": 1.0, "normal/big": 3.0}
FLOWS = ["high/a", "normal/a", "normal/b", "normal/big", "low/a", "low/b"]


def weight_of(name: str) -> float:
    return WEIGHTS.get(name, 1.0)


def queue() -> Tickets:
    return Tickets(Fairness(weight_of))


def put(
    tickets: Tickets, name: str, flow: str, *, service_us: int = 100, replica: str = "r1", key_us: int = 0
) -> None:
    said = Waiting(name, 1, replica, 0, key_us, "|", "", flow, service_us, 10, 20)
    tickets.put(said, -1)


def name_of(ticket: Ticket | None) -> str | None:
    return None if ticket is None else ticket.request_id


def test_the_greatest_key_of_the_least_class_goes_first() -> None:
    tickets = queue()
    put(tickets, "n", "normal/a", key_us=9)
    put(tickets, "l1", "low/a", key_us=1)
    put(tickets, "l2", "low/a", key_us=2)
    assert name_of(tickets.worst("r1", "high/a", 100)) == "l2"
    assert name_of(tickets.worst("r1", "normal/a", 100)) == "l2"


def test_nobody_is_displaced_by_a_lesser_class_nor_by_the_own_flow() -> None:
    tickets = queue()
    put(tickets, "n", "normal/a", service_us=10**9)
    assert tickets.worst("r1", "low/a", 1) is None
    assert tickets.worst("r1", "normal/a", 1) is None


def test_of_the_own_class_the_flow_goes_first_that_has_most_waiting_by_its_weight() -> None:
    """Flow big has 300 waiting at weight 3; flow a has 200 at weight 1."""
    tickets = queue()
    put(tickets, "big", "normal/big", service_us=300)
    put(tickets, "a1", "normal/a")
    put(tickets, "a2", "normal/a", key_us=1)
    assert name_of(tickets.worst("r1", "normal/b", 50)) == "a2"
    assert name_of(tickets.worst("r1", "normal/b", 199)) == "a2"
    assert tickets.worst("r1", "normal/b", 200) is None


def test_what_waits_elsewhere_counts_but_only_what_waits_here_is_displaced() -> None:
    tickets = queue()
    put(tickets, "here", "normal/a")
    for number in range(9):
        put(tickets, f"there {number}", "normal/a", replica="r2", key_us=99)
    assert name_of(tickets.worst("r1", "normal/b", 500)) == "here"
    assert tickets.worst("r3", "normal/b", 500) is None


def test_what_waits_no_more_is_not_counted() -> None:
    tickets = queue()
    for number in range(3):
        put(tickets, f"{number}", "normal/a")
    for number in range(2):
        tickets.ended(f"{number}")
    assert tickets.worst("r1", "normal/b", 100) is None
    assert name_of(tickets.worst("r1", "normal/b", 99)) == "2"


steps = st.lists(
    st.tuples(
        st.sampled_from(FLOWS),
        st.integers(0, 500),
        st.sampled_from(["r1", "r2"]),
        st.integers(0, 9),
        st.booleans(),
    ),
    max_size=40,
)


def naive(waiting: Iterable[Ticket], flow: str, service_us: int) -> set[str]:
    """Tickets that a request may displace at r1, by looking at all."""
    waiting = list(waiting)
    work: Counter[str] = Counter()
    for ticket in waiting:
        work[ticket.flow] += ticket.service_us
    limit = (work[flow] + service_us) / weight_of(flow)

    def entry(ticket: Ticket) -> tuple[float, float] | None:
        rank = weight_of(class_of(ticket.flow)) - weight_of(class_of(flow))
        ratio = work[ticket.flow] / weight_of(ticket.flow)
        if rank < 0 or (class_of(ticket.flow) == class_of(flow) and ratio > limit):
            return -rank, ratio
        return None

    claims = {ticket: found for ticket in waiting if ticket.replica == "r1" and (found := entry(ticket))}
    worst = [ticket for ticket, found in claims.items() if found == max(claims.values())]
    return {
        ticket.request_id
        for ticket in worst
        if ticket.key_us == max(other.key_us for other in worst if other.flow == ticket.flow)
    }


@given(steps, st.sampled_from(FLOWS), st.integers(0, 500))
def test_it_agrees_with_looking_at_all(
    script: list[tuple[str, int, str, int, bool]], flow: str, service_us: int
) -> None:
    tickets = queue()
    for number, (whose, work_us, replica, key_us, ends) in enumerate(script):
        put(tickets, f"{number}", whose, service_us=work_us, replica=replica, key_us=key_us)
        if ends:
            tickets.ended(f"{number // 2}")
    found = tickets.worst("r1", flow, service_us)
    expected = naive(tickets, flow, service_us)
    assert found.request_id in expected if found is not None else not expected


@given(
    st.lists(
        st.tuples(st.sampled_from(["normal/a", "normal/b", "normal/big"]), st.integers(1, 100)), min_size=60
    )
)
def test_places_end_up_by_weight_however_often_each_comes(script: list[tuple[str, int]]) -> None:
    """No rejected request would have had less waiting by weight than any request that stayed."""
    tickets = queue()
    for number, (flow, work_us) in enumerate(script):
        if tickets.count >= 10:
            worst = tickets.worst("r1", flow, work_us)
            if worst is None:
                work: Counter[str] = Counter()
                for ticket in tickets:
                    work[ticket.flow] += ticket.service_us
                own = (work[flow] + work_us) / weight_of(flow)
                assert all(work[other] / weight_of(other) <= own for other in work)
                continue
            tickets.ended(worst.request_id)
        put(tickets, f"{number}", flow, service_us=work_us, key_us=number)
