"""Reservations of links: the same in any order, released exactly once, and never more than the cap."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    Finished,
    FleetRules,
    FleetState,
    Left,
    LinkMeasured,
    LinkRules,
    Links,
    Op,
    Placed,
    Quote,
    Shipped,
    Shipping,
    WorkerPut,
    link_name,
)
from policies.state.links import OVERDUE_US_MAX

LINK, OTHER = "far>", "near>"
SECOND = 1_000_000
START = 1_000 * SECOND
TICK_US = SECOND // 4
GB = 10**9
RULES = {LINK: LinkRules(gbps=80.0, rtt_ms=20.0, cap_ratio=0.9), OTHER: LinkRules(gbps=8.0)}


def shipping(
    request_id: str = "r",
    *,
    at_us: int = START,
    gigabytes: float = 1.0,
    start_us: int = START,
    s: float = 1.0,
    replica: str = "one",
    link: str = LINK,
) -> Shipping:
    end_us = start_us + round(s * 1e6)
    return Shipping(request_id, at_us, replica, link, round(gigabytes * GB), start_us, end_us)


def links_after(*ops: Shipping | LinkMeasured) -> Links:
    links = Links(RULES)
    for op in ops:
        if isinstance(op, Shipping):
            links.shipping(op)
        else:
            links.measured.put(op)
    return links


def measured(gigabytes_per_s: float, at_us: int = START, replica: str = "one", **more: float) -> LinkMeasured:
    return LinkMeasured(LINK, at_us, replica, gigabytes_per_s * GB, **more)


def quoted(
    links: Links, gigabytes: float, compute_s: float, ready_s: float = 0.0, now_us: int = START
) -> Quote:
    quote = links.quote(LINK, gigabytes * GB, compute_s, ready_s, now_us)
    assert quote is not None
    return quote


# The fold.

REPLICAS = ("one", "two")
KINDS = ("shipping", "shipping", "shipping", "shipped", "finished", "left", "measured", "placed")
Drawn = tuple[str, int, int]


def made(kind: str, number: int, tick: int) -> Op:
    at_us, replica, request_id = START + tick * TICK_US, REPLICAS[number % 2], f"r{number}"
    made_of: dict[str, Op] = {
        "shipping": Shipping(
            request_id,
            at_us,
            replica,
            (LINK, OTHER)[number % 3 > 1],
            (1 + number) * GB,
            at_us,
            at_us + SECOND,
            number % 2 * GB,
        ),
        "shipped": Shipped(request_id, at_us),
        "finished": Finished(request_id, at_us),
        "left": Left(replica, at_us),
        "measured": LinkMeasured(LINK, at_us, replica, float(1 + number), loss_ratio=number / 8),
        "placed": Placed(request_id, START, "a:1", replica, 0, 0, 500),
    }
    return made_of[kind]


drawn_ops = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 4)), min_size=3, max_size=25
)


def peak_bytes_per_s(links: Links, link: str, start_us: int, end_us: int, now_us: int) -> float:
    """The highest reservation at any moment of a time, with transfers overdue by now."""
    links.reserved_bytes_per_s(link, now_us)
    load = links._loads.get(link)
    return load.timetable.peak(start_us, end_us) if load is not None else 0.0


def seen(links: Links, now_us: int) -> dict[str, object]:
    """Facts of links that decisions read, after the seconds of earlier transfers are over."""
    return {
        link: (
            links.utilisation(link, now_us),
            [
                peak_bytes_per_s(links, link, at_us, at_us + TICK_US, now_us)
                for at_us in range(now_us, now_us + 4 * SECOND, TICK_US)
            ],
            links.quote(link, GB, 0.5, 0.1, now_us),
            links.loss_ratio(link),
            links.cap_bytes_per_s(link, now_us),
        )
        for link in (LINK, OTHER)
    }


def naive(ops: list[Op], now_us: int) -> dict[str, object]:
    """The same by definition: of each request the newest plan, unless anything that was said ended it."""
    ended = {op.request_id for op in ops if isinstance(op, Shipped | Finished)}
    left_us = {
        replica: max((op.at_us for op in ops if isinstance(op, Left) and op.replica == replica), default=0)
        for replica in REPLICAS
    }
    newest: dict[str, Shipping] = {}
    for op in ops:
        if isinstance(op, Shipping) and op.request_id not in ended and op.at_us > left_us[op.replica]:
            newest[op.request_id] = max(op, newest.get(op.request_id, op), key=lambda said: said.at_us)
    links = Links(RULES)
    for request_id in sorted(newest):
        links.shipping(newest[request_id])
    known = [op for op in ops if isinstance(op, LinkMeasured)]
    if known:
        links.measured.put(max(known, key=lambda said: (said.at_us, said.replica, said.bytes_per_s)))
    return seen(links, now_us)


def folded(fleet: FleetState, ops: list[Op]) -> FleetState:
    for op in ops:
        fleet.apply(op)
    return fleet


def unambiguous(drawn: list[Drawn]) -> list[Op]:
    """No replica says two things of a link in one moment."""
    said: dict[object, Op] = {}
    for each in drawn:
        op = made(*each)
        key = (op.at_us, op.replica) if isinstance(op, LinkMeasured) else each
        said.setdefault(key, op)
    return list(said.values())


def fleet_with_links() -> FleetState:
    fleet = FleetState(FleetRules(links=RULES))
    fleet.apply(WorkerPut("a:1", 1, "static", "http://a:1"))
    return fleet


@given(drawn_ops, st.randoms(use_true_random=False), st.integers(9, 14))
def test_any_order_and_any_repetition_reserve_the_same(
    drawn: list[Drawn], random: Random, ticks: int
) -> None:
    ops = unambiguous(drawn)
    now_us = START + ticks * TICK_US
    shuffled = ops * 2
    random.shuffle(shuffled)
    half = len(shuffled) // 2
    fleet = folded(fleet_with_links(), shuffled[:half])
    fleet.links.collect(now_us, 10**12)
    folded(fleet, shuffled[half:])
    assert seen(fleet.links, now_us) == naive(ops, now_us)


def as_logged(drawn: list[Drawn]) -> list[Op]:
    """An order in which replicas could have said it: a request is placed first and ends once."""
    placed: set[str] = set()
    shipped: set[str] = set()
    ended: set[str] = set()
    ops: list[Op] = []
    for op in unambiguous(drawn):
        if isinstance(op, Placed | Shipping | Shipped | Finished):
            if op.request_id in ended or (isinstance(op, Shipping) and op.request_id in shipped):
                continue
            if not isinstance(op, Placed) and op.request_id not in placed:
                continue
            placed.add(op.request_id)
            if isinstance(op, Shipped):
                shipped.add(op.request_id)
            if isinstance(op, Finished):
                ended.add(op.request_id)
        ops.append(op)
    return ops


@given(drawn_ops, st.integers(0, 25), st.integers(0, 25), st.integers(9, 14))
def test_a_snapshot_mends_a_gap(drawn: list[Drawn], read: int, covered: int, ticks: int) -> None:
    """One replica knows the beginning and all of its own, then a snapshot, then the log behind that."""
    ops, now_us = as_logged(drawn), START + ticks * TICK_US
    own = [
        op for op in ops if isinstance(op, Placed | Shipping | LinkMeasured | Left) and op.replica == "one"
    ]
    own_ids = {op.request_id for op in own if isinstance(op, Placed | Shipping)}
    own += [op for op in ops if isinstance(op, Shipped | Finished) and op.request_id in own_ids]
    fleet = folded(fleet_with_links(), ops[:read] + own)
    fleet.restore(folded(fleet_with_links(), ops[:covered]).snapshot(), "one", missed=True)
    folded(fleet, ops[covered:])
    assert seen(fleet.links, now_us) == naive(ops, now_us)


@pytest.mark.parametrize("missed", [False, True])
def test_what_a_snapshot_does_not_list_has_arrived_unheard_unless_it_is_our_own(missed: bool) -> None:
    """Transfer "two" of three ended in the part of the log that was not read; the first is ours."""
    ops: list[Op] = []
    for request_id, replica in (("one", "one"), ("two", "two"), ("three", "two")):
        ops.append(Placed(request_id, START, "a:1", replica, 0, 0, 500))
        ops.append(shipping(request_id, replica=replica))
    others = [op for op in ops if getattr(op, "replica", "") == "two"]
    fleet = folded(fleet_with_links(), ops)
    fleet.restore(
        folded(fleet_with_links(), [*others, Shipped("two", START)]).snapshot(), "one", missed=missed
    )
    assert set(fleet.links.transfers) == {"one", "three"} | (set() if missed else {"two"})


def test_measurements_are_in_the_snapshot() -> None:
    known = [measured(2, START, rtt_s=0.03), LinkMeasured(OTHER, START, "one", 1.0)]
    again = fleet_with_links()
    again.restore(folded(fleet_with_links(), [*known]).snapshot())
    assert [*again.links.measured] == known


def test_a_reservation_is_released_once_whoever_says_so() -> None:
    """`Shipped`, then the end of its request; and a late repetition does not bring it back."""
    fleet = folded(fleet_with_links(), [Placed("r", START, "a:1", "one", 0, 0, 500), shipping()])
    assert fleet.links.utilisation(LINK, START) == pytest.approx(1 / 9)
    for op in (Shipped("r", START), shipping(at_us=START + 5), Finished("r", START), Shipped("r", START)):
        fleet.apply(op)
        assert fleet.links.under_way(LINK) == 0
        assert fleet.links.utilisation(LINK, START) == 0
    assert peak_bytes_per_s(fleet.links, LINK, START, START + SECOND, START) == 0


def test_what_is_never_released_is_released_for_its_age_and_counted() -> None:
    fleet = folded(FleetState(FleetRules(links=RULES, lifetime_s_max=60.0)), [shipping()])
    assert fleet.collect(START + 60 * SECOND) == 0
    assert fleet.links.under_way(LINK) == 1
    assert fleet.collect(START + 61 * SECOND) == 1
    assert fleet.links.under_way(LINK) == 0


def test_ended_transfers_are_forgotten_after_a_while() -> None:
    """Two generations of 30 s; a repetition later than that is none of this log."""
    links = links_after()
    links.ended("r", START)
    links.collect(START + 30 * SECOND, 10**12)
    links.shipping(shipping())
    assert not links.transfers
    links.collect(START + 60 * SECOND, 10**12)
    links.collect(START + 90 * SECOND, 10**12)
    links.shipping(shipping())
    assert links.transfers
    links.ended("r", START)
    links.collect(START + 900 * SECOND, 10**12)
    links.shipping(shipping())
    assert links.transfers


def test_a_later_word_moves_a_transfer_to_another_time_and_link() -> None:
    links = links_after(shipping(), shipping(at_us=START + 1, link=OTHER, start_us=START + 2 * SECOND))
    assert links.utilisation(LINK, START) == 0
    assert peak_bytes_per_s(links, OTHER, START, START + 3 * SECOND, START) == GB
    assert [op.link for op in links.dump_steps() if op is not None] == [OTHER]


def test_nonsense_from_the_log_does_no_harm() -> None:
    """An end before its start, bytes below zero, or more than there are: all of it is released again."""
    links = links_after(
        shipping("a", s=-5.0),
        shipping("b", gigabytes=-1.0),
        shipping("c", gigabytes=1e15, s=0.0),
        Shipping("d", START, "one", LINK, 2**60, 2**60, 2**60 + 1),
    )
    assert links.utilisation(LINK, START) > 1
    assert links.quote(LINK, GB, 1.0, 0.0, START) is not None
    for request_id in "abcd":
        assert links.ended(request_id, START)
    assert links.utilisation(LINK, START) == 0


# Late transfers.


def test_a_transfer_that_is_late_still_uses_the_link_for_a_while() -> None:
    """1 s planned; it counts a quarter longer each time, and is stuck after another 30 s."""
    links = links_after(shipping())
    at_us = [START + round(s * SECOND) for s in (0.5, 1.0, 1.2, 1.3, 20.0, 30.9)]
    assert [links.reserved_bytes_per_s(LINK, now_us) for now_us in at_us] == [GB] * 6
    assert peak_bytes_per_s(links, LINK, START + 31 * SECOND, START + 40 * SECOND, at_us[-1]) == 0
    stuck_us = START + SECOND + OVERDUE_US_MAX
    assert links.reserved_bytes_per_s(LINK, stuck_us) == 0
    assert links.under_way(LINK) == 1
    assert links.ended("r", START)


def test_the_next_transfer_is_planned_behind_one_that_is_late() -> None:
    links = links_after(shipping(gigabytes=9.0))
    assert quoted(links, 8.0, 1.0).start_us == START + SECOND
    late_us = START + SECOND + SECOND // 8
    assert quoted(links, 9.0, 1.0, now_us=late_us).start_us == START + SECOND + SECOND // 4


def test_the_ends_that_are_remembered_do_not_pile_up() -> None:
    """One transfer stays, while a thousand come, are planned again, and go."""
    links = links_after(shipping("stays", s=100.0))
    for number in range(1_000):
        links.shipping(shipping(f"r{number}", s=50.0))
        links.shipping(shipping(f"r{number}", at_us=START + 1, s=60.0))
        links.ended(f"r{number}", START)
    load = links._loads[LINK]
    assert load.transfers == 1
    assert len(load.ends) < 20
    links.collect(START + 5 * SECOND, 10**12)
    assert len(load.timetable) == 2


# Capacity of a link.


def test_a_measurement_counts_if_it_is_less_and_what_it_allows_grows() -> None:
    """1 of 10 GB/s, doubled every 10 s; 0.9 of it may be reserved."""
    links = links_after(measured(1.0, rtt_s=0.05, loss_ratio=0.25))
    assert links.cap_bytes_per_s(LINK, START) == 0.9 * GB
    assert links.cap_bytes_per_s(LINK, START + 20 * SECOND) == 3.6 * GB
    assert links.cap_bytes_per_s(LINK, START + 10**6 * SECOND) == 9 * GB
    assert links.cap_bytes_per_s(LINK, START - SECOND) == 0.9 * GB
    assert (links.rtt_s(LINK), links.loss_ratio(LINK)) == (0.05, 0.25)
    assert links_after(measured(100.0)).cap_bytes_per_s(LINK, START) == 9 * GB
    assert links_after(measured(0.0)).cap_bytes_per_s(LINK, START) == 9 * GB


def test_what_was_not_measured_is_as_configured() -> None:
    links = links_after(LinkMeasured(LINK, START, "one", 0.0))
    assert (links.rtt_s(LINK), links.rtt_s(OTHER), links.rtt_s("unknown>")) == (0.02, 0.0, 0.0)
    assert (links.loss_ratio(OTHER), links.measurement(OTHER)) == (0.0, None)


def test_a_link_without_rules_may_not_be_used_whatever_others_reserve_there() -> None:
    links = links_after(shipping(link="unknown>"))
    assert links.quote("unknown>", GB, 1.0, 0.0, START) is None
    assert links.capacity_bytes_per_s("unknown>", START) == 0
    assert links.utilisation("unknown>", START) == 0
    assert links.reserved_bytes_per_s("unknown>", START) == GB
    assert link_name("unknown", "") == "unknown>"


# Quotes.


def test_layers_leave_while_the_prefill_goes_on() -> None:
    """1 GB in 2 s of prefill, from in half a second: 0.5 GB/s of the 9, and nothing is left when it ends."""
    quote = quoted(links_after(), 1.0, 2.0, 0.5)
    assert (quote.start_us, quote.end_us) == (START + SECOND // 2, START + 5 * SECOND // 2)
    assert (quote.wait_s, quote.send_s, quote.exposed_s, quote.fits) == (0.0, 2.0, 0.0, True)


def test_what_the_prefill_does_not_hide_is_exposed() -> None:
    """18 GB need 1.8 s of the link's 10 GB/s, for any reservations: no transfer is slowed down."""
    assert quoted(links_after(), 18.0, 0.5).exposed_s == pytest.approx(1.3, abs=1e-5)
    assert quoted(links_after(), 18.0, 0.0).exposed_s == pytest.approx(1.8, abs=1e-5)


def test_a_second_counts_and_not_a_moment() -> None:
    """5 GB leave in half a second, at more than the cap; 4 more fit into that second, and not 4.1."""
    links = links_after(shipping(gigabytes=5.0, s=0.5))
    assert quoted(links, 3.9, 0.0, 0.5).fits
    assert not quoted(links, 4.1, 0.0, 0.5).fits
    assert quoted(links, 4.1, 0.0, 1.1).fits


def test_two_pulls_do_not_share_the_link() -> None:
    """For 1 GB each, 0.1 s: the other one begins when the first is over."""
    quote = quoted(links_after(shipping(gigabytes=1.0, s=0.1)), 1.0, 0.0)
    assert (quote.wait_s, quote.send_s, quote.above_cap) == (0.1, pytest.approx(0.1, abs=1e-5), False)


def test_a_pull_goes_beside_layers_that_leave_it_some_of_the_link() -> None:
    """5 GB/s leave layer by layer, half of the link's capacity, or 8."""
    assert quoted(links_after(shipping(gigabytes=10.0, s=2.0)), 1.0, 0.0).fits
    assert not quoted(links_after(shipping(gigabytes=16.0, s=2.0)), 0.5, 0.0).fits


def test_more_than_a_second_of_the_cap_goes_alone() -> None:
    """9.5 of 9 GB: not before the second is over that saw 10 MB."""
    assert quoted(links_after(), 9.5, 0.0).above_cap
    quote = quoted(links_after(shipping(gigabytes=0.01, s=0.01)), 9.5, 0.0)
    assert (quote.fits, quote.above_cap, quote.wait_s) == (False, True, pytest.approx(1.01))


def test_what_came_early_has_crossed_all_the_same() -> None:
    """9 GB, planned for 2 s, were there after one: none of the next second is free but for its end."""
    links = links_after(shipping(gigabytes=9.0, s=2.0))
    links.ended("r", START + SECOND)
    quote = quoted(links, 4.5, 0.0, now_us=START + SECOND)
    assert not quote.fits
    assert quoted(links, 4.5, 0.0, 0.6, START + SECOND).fits


def test_a_transfer_waits_for_a_full_link() -> None:
    quote = quoted(links_after(shipping(gigabytes=9.0)), 4.5, 1.0, 0.25)
    assert (quote.start_us, quote.wait_s, quote.fits) == (START + SECOND, 0.75, False)
    assert quote.utilisation == 1.0


def test_nothing_to_send_fits_everywhere() -> None:
    quote = quoted(links_after(shipping(gigabytes=9.0)), 0.0, 0.5)
    assert (quote.fits, quote.exposed_s) == (True, 0.0)


Asked = tuple[int, float, float, float, int, float]
"""Replica, gigabytes, seconds of prefill, seconds until it begins, microseconds since the one before, and the
share that leaves at once."""

DELAY_US = 3_000


def asked(
    replicas: int, ready_s_max: float, later_us_max: int, ready_ratio_max: float = 0.0
) -> st.SearchStrategy[list[Asked]]:
    return st.lists(
        st.tuples(
            st.integers(0, replicas - 1),
            st.floats(0.0, 9.0),
            st.floats(0.0, 2.0),
            st.floats(0.0, ready_s_max),
            st.integers(0, later_us_max),
            st.floats(0.0, ready_ratio_max),
        ),
        max_size=40,
    )


def planned(drawn: list[Asked], replicas: int = 1, delay_us: int = 0) -> list[Shipping]:
    """Reservations of replicas by their quotes; transfers arrive when they should."""
    fleets = [links_after() for _ in range(replicas)]
    said: list[Shipping] = []
    heard, now_us = 0, START
    for number, (own, gigabytes, compute_s, ready_s, later_us, ready_ratio) in enumerate(drawn):
        now_us += later_us
        while heard < len(said) and said[heard].at_us <= now_us - delay_us:
            for links in fleets:
                links.shipping(said[heard])
            heard += 1
        for op in said:
            if op.end_us <= now_us:
                for links in fleets:
                    links.ended(op.request_id, op.end_us)
        kv_bytes = int(gigabytes * GB)
        ready_bytes = int(kv_bytes * ready_ratio) if compute_s else 0
        quote = fleets[own].quote(LINK, kv_bytes, compute_s, ready_s, now_us, ready_bytes)
        assert quote is not None
        assert quote.start_us >= now_us + round(ready_s * 1e6)
        assert quote.exposed_s >= 0
        start_us, end_us = quote.start_us, quote.end_us
        ready_bytes = ready_bytes if quote.ready_us else 0
        said.append(
            Shipping(
                f"r{number}",
                now_us,
                f"{own}",
                LINK,
                kv_bytes,
                start_us,
                end_us,
                ready_bytes,
                quote.ready_us,
            )
        )
        fleets[own].shipping(said[-1])
    return said


def rates_at(said: list[Shipping], moment_us: int) -> dict[Shipping, float]:
    """Transfers on the link at a moment, and their rates."""
    return {
        op: op.kv_bytes * 1e6 / (op.end_us - op.start_us)
        for op in said
        if op.start_us <= moment_us < op.end_us and op.kv_bytes
    }


@given(asked(1, 5.0, SECOND, 0.5))
def test_no_second_sees_more_than_the_cap_whatever_leaves_at_once(drawn: list[Asked]) -> None:
    """Any transfers, in any order, at any time; up to half of each may be cached."""
    said = planned(drawn)

    def left(op: Shipping, from_us: int) -> float:
        def within(end_us: int) -> float:
            sent_us = min(end_us, from_us + SECOND) - max(op.start_us, from_us)
            return max(sent_us, 0) / (end_us - op.start_us)

        late = op.kv_bytes - op.ready_bytes
        return late * within(op.end_us) + op.ready_bytes * within(op.start_us + max(op.ready_us, 1))

    moments = {moment_us for op in said for moment_us in (op.start_us, op.end_us)}
    for from_us in {each + offset for each in moments for offset in (0, 1, -SECOND, 1 - SECOND)}:
        assert sum(left(op, from_us) for op in said) <= 9 * GB + GB // 1_000


@given(asked(4, 0.5, 4_000))
def test_replicas_exceed_the_cap_at_most_by_what_they_had_not_heard_of(drawn: list[Asked]) -> None:
    """Four replicas that hear of each other after 3 ms.

    The transfer planned last fits beside all others on the link in a moment that its replica knew of then. So
    the link never carries more than a pull, the room that it leaves others, and the reservations of the 3 ms
    before it.
    """
    said = planned(drawn, 4, DELAY_US)
    for moment_us in [op.start_us for op in said]:
        rates = rates_at(said, moment_us)
        if not rates:
            continue
        last = max(rates, key=said.index)
        unheard = sum(
            rate
            for op, rate in rates.items()
            if op.replica != last.replica and op.at_us > last.at_us - DELAY_US
        )
        assert sum(rates.values()) <= 17.5 * GB + unheard + 10


def test_replicas_that_decided_at_once_agree_as_soon_as_they_have_heard() -> None:
    """Four take all of a free link in the same moment; the next waits until the four have been sent."""
    said = planned([(own, 9.0, 1.0, 0.0, 0, 0.0) for own in range(4)], 4, DELAY_US)
    assert sum(rates_at(said, START).values()) == pytest.approx(4 * 9 * GB, rel=1e-5)
    links = links_after(*said)
    assert links.utilisation(LINK, START) == pytest.approx(4.0, rel=1e-5)
    assert quoted(links, 9.0, 1.0).start_us >= said[0].end_us
