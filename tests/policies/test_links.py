"""What is reserved of links: the same in any order, released exactly once, and never more than the cap."""

from random import Random

from hypothesis import given, settings
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
)

LINK, OTHER = "far>", "near>"
SECOND = 1_000_000
START = 1_000 * SECOND
TICK_US = SECOND // 4
GB = 10**9
RULES = {LINK: LinkRules(bytes_per_s=10 * GB, rtt_s=0.02, cap_ratio=0.9), OTHER: LinkRules(bytes_per_s=GB)}


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
            links.measured(op)
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


def seen(links: Links, now_us: int) -> dict[str, object]:
    """All that a decision can see of links."""
    return {
        link: (
            links.utilisation(link, now_us),
            [
                links.peak_bytes_per_s(link, at_us, at_us + TICK_US, now_us)
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
        links.measured(max(known, key=lambda said: (said.at_us, said.replica, said.bytes_per_s)))
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


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(drawn_ops, st.randoms(use_true_random=False), st.integers(0, 12))
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


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(drawn_ops, st.integers(0, 25), st.integers(0, 25), st.integers(0, 12))
def test_a_snapshot_mends_a_gap(drawn: list[Drawn], read: int, covered: int, ticks: int) -> None:
    """One knows the beginning and all of its own, then what a snapshot covers, then reads on behind that."""
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
