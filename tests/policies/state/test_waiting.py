"""The next request, beside a plain list of those that wait."""

from collections.abc import Callable

import msgspec
import pytest
from fakes.bytecodes import bytecodes
from hypothesis import given
from hypothesis import strategies as st

from policies import Fairness, Ticket, Tickets, Waiting, class_of
from policies.state.flow_rows import FEW

SECOND = 1_000_000
LANES = ("tiny|", "|")
FLOWS = ("high/one", "low/one", "low/two")
REPLICAS = ("one", "two")
WEIGHTS = {"high": 4.0, "low": 1.0, "high/one": 1.0, "low/one": 1.0, "low/two": 2.0}


def waiting(
    request_id: str,
    key_us: int,
    *,
    at_us: int = 1,
    replica: str = "one",
    lane: str = "|",
    worker: str = "",
    flow: str = "low/one",
    service_us: int = 1000,
    arrived_us: int = 0,
) -> Waiting:
    return Waiting(
        request_id, at_us, replica, arrived_us, key_us, lane, worker, flow, service_us, service_us // 10, 500
    )


def tickets_of(*ops: Waiting, fairness: Fairness | None = None) -> Tickets:
    """Workers are named by their slots here."""
    tickets = Tickets(fairness or Fairness(WEIGHTS.__getitem__))
    for op in ops:
        tickets.put(op, int(op.worker or -1))
    return tickets


def name(ticket: Ticket | None) -> str | None:
    return ticket.request_id if ticket is not None else None


class NaiveTickets:
    """A list, searched for every question."""

    def __init__(self, fairness: Fairness) -> None:
        self.fairness = fairness
        self.ops: dict[str, Waiting] = {}

    def put(self, op: Waiting) -> None:
        known = self.ops.get(op.request_id)
        if known is None or op.at_us > known.at_us:
            self.ops[op.request_id] = op

    def first(self, ops: list[Waiting], now_us: int) -> str | None:
        classes: dict[str, list[str]] = {}
        for flow in sorted({op.flow for op in ops}):
            classes.setdefault(class_of(flow), []).append(flow)
        allowed = self.fairness.may_go(classes, now_us)
        ops = [op for op in ops if op.flow in allowed.get(class_of(op.flow), ())]
        return min(ops, key=_order).request_id if ops else None

    def at(self, slot: int, lanes: tuple[str, ...]) -> list[Waiting]:
        return [
            op for op in self.ops.values() if op.worker == str(slot) or (not op.worker and op.lane in lanes)
        ]

    def of(self, replica: str) -> list[Waiting]:
        return [op for op in self.ops.values() if op.replica == replica]

    def worst(self, replica: str, flow: str, service_us: int) -> tuple[str, int] | None:
        """Flow and key of the request that a newcomer displaces: any of the same key."""
        work_us = dict.fromkeys(FLOWS, 0.0)
        for op in self.ops.values():
            work_us[op.flow] += op.service_us / WEIGHTS[op.flow]
        limit_us = work_us[flow] + service_us / WEIGHTS[flow]
        rank = WEIGHTS[class_of(flow)]
        flows = [
            (-WEIGHTS[class_of(other)], work_us[other], other)
            for other in {op.flow for op in self.of(replica)}
            if WEIGHTS[class_of(other)] < rank
            or (class_of(other) == class_of(flow) and work_us[other] > limit_us)
        ]
        if not flows:
            return None
        *_, other = max(flows)
        return other, max(op.key_us for op in self.of(replica) if op.flow == other)


def _order(op: Waiting) -> tuple[int, int, str]:
    return op.key_us, op.arrived_us, op.request_id


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 7), st.integers(1, 5), st.integers(0, 23)),
        st.tuples(st.just("end"), st.integers(0, 7)),
        st.tuples(st.just("left"), st.sampled_from(REPLICAS), st.integers(1, 5)),
        st.tuples(st.just("served"), st.sampled_from(FLOWS), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(steps, st.booleans(), st.sampled_from([0, 1, FEW]))
def test_it_answers_like_a_list_that_is_searched(
    drawn: list[tuple[object, ...]], asked: bool, few: int
) -> None:
    """A question on a replica may be late, after many changes of its tickets; columns answer the same."""
    fairness = Fairness(WEIGHTS.__getitem__, quantum_s=6.0, window_s=60.0)
    tickets, naive = Tickets(fairness, few=few), NaiveTickets(fairness)
    if asked:
        for replica in REPLICAS:
            tickets.worst(replica, FLOWS[0], 0)
    for step in drawn:
        match step:
            case ("put", int(number), int(at), int(kind)):
                # A replica says one thing of a request at one moment.
                op = waiting(
                    f"r{number}",
                    10 * (kind % 7) + number % 3,
                    at_us=100 * at + kind,
                    replica=REPLICAS[number % 2],
                    lane=LANES[kind % 2],
                    worker=("", "", "0", "1")[kind % 4],
                    flow=FLOWS[kind % 3],
                    service_us=1000 + number,
                )
                tickets.put(op, int(op.worker or -1))
                naive.put(op)
            case ("end", int(number)):
                ended = tickets.ended(f"r{number}")
                assert name(ended) == (f"r{number}" if f"r{number}" in naive.ops else None)
                naive.ops.pop(f"r{number}", None)
            case ("left", str(replica), int(at_us)):
                gone = {op.request_id for op in naive.of(replica) if op.at_us <= 100 * at_us}
                assert {ticket.request_id for ticket in tickets.left(replica, 100 * at_us)} == gone
                naive.ops = {key: op for key, op in naive.ops.items() if key not in gone}
            case ("served", str(flow), int(seconds)):
                fairness.charge(flow, SECOND, seconds * SECOND)
        _agree(tickets, naive)


def _agree(tickets: Tickets, naive: NaiveTickets) -> None:
    ops = list(naive.ops.values())
    assert {ticket.request_id for ticket in tickets} == naive.ops.keys()
    assert tickets.count == len(ops)
    assert tickets.tokens == sum(op.uncached_tokens for op in ops)
    assert tickets.service_us == sum(op.service_us for op in ops)
    assert {lane: total.count for lane, total in tickets.lane_totals().items()} == {
        lane: count for lane in LANES if (count := sum(op.lane == lane for op in ops))
    }
    for lane in LANES:
        for key_us in (0, 30, 99):
            ahead_us = sum(op.service_us for op in ops if op.lane == lane and op.key_us < key_us)
            assert tickets.ahead_service_us(lane, key_us) == ahead_us
    for slot in (0, 1):
        assert tickets.waits_for(slot) == any(op.worker == str(slot) for op in ops)
        for lanes in ((), LANES[:1], LANES):
            here = naive.at(slot, lanes)
            assert name(tickets.best(slot, lanes, SECOND)) == naive.first(here, SECOND)
            for key_us in (0, 30, 99):
                first = naive.first(here, SECOND)
                ahead = first is not None and naive.ops[first].key_us < key_us
                assert tickets.ahead_of(slot, lanes, key_us, SECOND) == ahead
                newcomer = waiting("new", key_us, flow=FLOWS[1], arrived_us=-1)
                goes_first = naive.first([*here, newcomer], SECOND) == "new"
                assert tickets.ahead_of(slot, lanes, key_us, SECOND, flow=FLOWS[1]) == (not goes_first)
            skip = {"r1", "r2"}
            others = [op for op in here if op.request_id not in skip]
            assert name(tickets.best(slot, lanes, SECOND, skip=skip)) == naive.first(others, SECOND)
            for replica in REPLICAS:
                mine = [op for op in here if op.replica == replica]
                best = tickets.best(slot, lanes, SECOND, replica=replica)
                assert name(best) == naive.first(mine, SECOND)
    of_lane = [op for op in ops if op.lane == LANES[0]]
    assert name(tickets.best_of_lanes(LANES[:1], SECOND)) == naive.first(of_lane, SECOND)
    for replica in REPLICAS:
        mine = [op for op in naive.of(replica) if op.lane == LANES[0]]
        best = tickets.best_of_lanes(LANES[:1], SECOND, replica=replica)
        assert name(best) == naive.first(mine, SECOND)
        for flow in FLOWS:
            worst = tickets.worst(replica, flow, 900)
            found = None if worst is None else (worst.flow, worst.key_us)
            assert found == naive.worst(replica, flow, 900)


def test_what_waits_for_a_worker_competes_with_what_waits_for_any_of_its_lanes() -> None:
    tickets = tickets_of(
        waiting("any", 30), waiting("this", 20, worker="0"), waiting("other", 10, worker="1")
    )
    assert name(tickets.best(0, ("|",), SECOND)) == "this"
    assert name(tickets.best(2, ("|",), SECOND)) == "any"
    assert name(tickets.best(0, ("tiny|",), SECOND)) == "this"
    assert tickets.best(2, ("tiny|",), SECOND) is None
    assert name(tickets.best_of_lanes(("|",), SECOND, replica="one")) == "other"


def test_of_equal_keys_the_earlier_arrival_goes_first() -> None:
    tickets = tickets_of(waiting("a", 10, arrived_us=6), waiting("b", 10, arrived_us=5))
    assert name(tickets.best(0, ("|",), SECOND)) == "b"


def test_a_request_that_says_again_what_it_waits_for_leaves_its_line() -> None:
    tickets = tickets_of(waiting("a", 10, worker="0"), waiting("a", 20, worker="1", at_us=2))
    assert tickets.best(0, ("|",), SECOND) is None
    assert name(tickets.best(1, ("|",), SECOND)) == "a"
    tickets.put(waiting("a", 10, worker="0"), 0)
    assert not tickets.waits_for(0)


def test_of_two_words_of_one_moment_all_replicas_keep_the_same() -> None:
    one, two = waiting("a", 10), waiting("a", 20)
    assert list(tickets_of(one, two)) == list(tickets_of(two, one))


def test_a_flow_far_ahead_lets_others_go_whatever_their_keys() -> None:
    fairness = Fairness(WEIGHTS.__getitem__)
    tickets = tickets_of(
        waiting("short", 10, flow="low/one"), waiting("long", 99, flow="low/two"), fairness=fairness
    )
    assert name(tickets.best(0, ("|",), SECOND)) == "short"
    fairness.charge("low/one", SECOND, 5 * SECOND)
    assert name(tickets.best(0, ("|",), SECOND)) == "long"
    assert tickets.ahead_of(0, ("|",), 1, SECOND, flow="low/one")
    assert not tickets.ahead_of(0, ("|",), 1, SECOND, flow="low/two")
    tickets.ended("long")
    assert name(tickets.best(0, ("|",), SECOND)) == "short"


def test_a_placement_past_a_better_ticket_is_an_inversion() -> None:
    tickets = tickets_of(waiting("first", 10), waiting("second", 30), waiting("third", 60))
    assert name(tickets.placed("third", 0, SECOND)) == "third"
    assert (tickets.inversions.count, tickets.inversions.us_max) == (1, 50)
    tickets.placed("first", 0, SECOND)
    tickets.placed("second", 0, SECOND)
    assert tickets.placed("never waited", 0, SECOND) is None
    assert (tickets.inversions.count, tickets.inversions.us_max) == (1, 50)


@pytest.mark.parametrize(
    "better",
    [
        waiting("better", 10, worker="1"),
        waiting("better", 10, lane="tiny|"),
        waiting("better", 10, at_us=SECOND),
        waiting("better", 10, flow="low/two"),
        waiting("better", 10, replica="two"),
    ],
    ids=["waits for another", "of another lane", "came later", "may not go", "of another replica"],
)
def test_a_better_ticket_that_could_not_have_gone_is_not_overtaken(better: Waiting) -> None:
    """A replica does not count the tickets of others either, once it knows its own."""
    tickets = tickets_of(better, waiting("placed", 30))
    tickets.watched = "one"
    tickets.fairness.charge("low/two", SECOND, 5 * SECOND)
    tickets.placed("placed", 0, SECOND)
    assert tickets.inversions.count == 0


def test_a_placement_in_order_costs_the_same_however_many_flows_wait() -> None:
    """It once took 4 ms for 5,000 flows, at every replica. One ticket is of the watched replica."""

    def cost(flows: int) -> int:
        tickets = Tickets(Fairness())
        tickets.watched = "two"
        for number in range(flows):
            replica = "two" if number == 1 else "one"
            tickets.put(waiting(str(number), number, flow=f"low/{number}", replica=replica), -1)
        return bytecodes(lambda: tickets.placed("0", 0, SECOND))

    assert cost(1000) == cost(10)


def many_flows(flows: int) -> Tickets:
    """Two requests of each wait, one of them at the watched replica."""
    tickets = Tickets(Fairness(), watched="two")
    for number in range(2 * flows):
        op = waiting(
            str(number), number, flow=f"low/{number % flows}", replica="two" if number % 2 else "one"
        )
        tickets.put(op, -1)
        tickets.fairness.charge(op.flow, SECOND, number)
    tickets.best(0, ("|",), SECOND)
    tickets.best(0, ("|",), SECOND, replica="two")
    tickets.worst("two", "low/new", 0)
    return tickets


@pytest.mark.parametrize(
    "ask",
    [
        lambda tickets: tickets.best(0, ("|",), SECOND),
        lambda tickets: tickets.best(0, ("|",), SECOND, skip={"1", "5"}),
        lambda tickets: tickets.best(0, ("|",), SECOND, replica="two"),
        lambda tickets: tickets.ahead_of(0, ("|",), 0, SECOND, flow="low/new"),
        lambda tickets: tickets.placed("41", 0, SECOND),
        lambda tickets: tickets.worst("two", "low/new", 0),
    ],
    ids=["best", "best but some", "best of a replica", "ahead", "inversion", "worst"],
)
def test_a_question_takes_as_many_python_steps_for_1000_flows_as_for_50(
    ask: Callable[[Tickets], object],
) -> None:
    few, many = many_flows(50), many_flows(1000)
    assert bytecodes(lambda: ask(many)) <= bytecodes(lambda: ask(few)) + 50


def test_flows_that_no_longer_wait_have_no_rows() -> None:
    tickets = many_flows(50)
    for number in range(100):
        tickets.ended(str(number))
    assert not tickets.fairness.rows._row
    assert not tickets.fairness.rows.work_us
    assert len(tickets.fairness.rows._free) == 50


def test_flows_of_two_lines_compete_as_one() -> None:
    """A flow that waits in both is counted once."""
    tickets = Tickets(Fairness(), few=0)
    for number in range(3):
        tickets.put(waiting(f"any{number}", 10 + number, flow=f"low/{number}"), -1)
        tickets.put(waiting(f"here{number}", 20 - number, worker="0", flow=f"low/{number}"), 0)
    assert name(tickets.best(0, ("|",), SECOND)) == "any0"
    tickets.fairness.charge("low/0", SECOND, 60 * SECOND)
    assert name(tickets.best(0, ("|",), SECOND)) == "any1"
    assert name(tickets.best(0, ("|",), SECOND, skip={"any1"})) == "any2"
    assert name(tickets.best(0, ("|",), SECOND, skip={"any1", "any2", "here1"})) == "here2"


def test_a_placement_past_a_better_ticket_of_the_watched_replica_is_an_inversion() -> None:
    tickets = tickets_of(waiting("better", 10), waiting("best", 5, replica="two"), waiting("placed", 30))
    tickets.watched = "two"
    tickets.placed("placed", 0, SECOND)
    assert (tickets.inversions.count, tickets.inversions.us_max) == (1, 25)


def test_who_lets_others_pass_is_not_overtaken_until_it_is_asked_again() -> None:
    tickets = tickets_of(*(waiting(name, 10 * number) for number, name in enumerate("abcde")))
    tickets.declined.add("a")
    tickets.placed("b", 0, SECOND)
    assert tickets.inversions.count == 0
    tickets.placed("d", 0, SECOND)
    assert tickets.inversions.count == 1  # before c
    tickets.declined.discard("a")
    tickets.placed("c", 0, SECOND)
    assert tickets.inversions.count == 2
    tickets.declined.add("a")
    tickets.ended("a")
    assert not tickets.declined


def test_a_ticket_that_nobody_ends_is_given_up_at_last() -> None:
    tickets = tickets_of(waiting("old", 10), waiting("new", 20, at_us=SECOND))
    assert tickets.collect(SECOND + 2, SECOND) == 1
    assert [ticket.request_id for ticket in tickets] == ["new"]


def test_a_missed_part_of_the_log_ends_what_others_waited_with() -> None:
    tickets = tickets_of(
        waiting("mine", 1), waiting("ended", 2, replica="two"), waiting("listed", 3, replica="two")
    )
    tickets.retain({"listed"}, "one")
    assert sorted(ticket.request_id for ticket in tickets) == ["listed", "mine"]


def test_work_ahead_of_a_key_in_a_long_queue_is_nearly_right() -> None:
    """A sixteenth of 1,000 requests of 1 ms may have changed since the sum was computed."""
    tickets = tickets_of(*(waiting(f"r{number}", number) for number in range(1000)))
    assert tickets.ahead_service_us("|", 500) == 500_000
    for number in range(50):
        tickets.ended(f"r{number}")
    assert tickets.ahead_service_us("|", 500) == 500_000
    for number in range(50, 70):
        tickets.ended(f"r{number}")
    assert tickets.ahead_service_us("|", 500) == 430_000
    assert tickets.ahead_service_us("tiny|", 500) == 0


def test_who_waits_for_a_link_is_in_one_order_with_all_who_do() -> None:
    """The order ignores their worker behind the link and their replica."""
    ops = [
        msgspec.structs.replace(waiting("a", 30), link="x>"),
        msgspec.structs.replace(waiting("b", 20, replica="two", worker="7"), link="x>"),
        msgspec.structs.replace(waiting("c", 10), link="y>"),
        waiting("d", 5),
    ]
    tickets = tickets_of(*ops)
    assert (name(tickets.first_for_link("x>")), name(tickets.first_for_link("y>"))) == ("b", "c")
    assert [op.link for op in tickets.dump_steps() if op is not None] == ["x>", "x>", "y>", ""]
    tickets.put(msgspec.structs.replace(ops[1], at_us=2, link=""), 7)
    assert name(tickets.first_for_link("x>")) == "a"
    tickets.ended("a")
    assert tickets.first_for_link("x>") is None
