"""The fold beside its definition: any order, any repetition, a gap mended by a snapshot: the same decisions.

The world is small, so that times tie and subjects meet. `test_replication` has a realistic log, with replicas
that die and snapshots that take time.
"""

from random import Random

from fakes.decisions import (
    CLASSES,
    LANE,
    PROMPTS,
    SERVED_FLOWS,
    WAITING_FLOW,
    WORKERS,
    congestion_differences,
    differences,
    path,
)
from fakes.naive_fold import NaiveFold
from fakes.words import word
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    Audited,
    EndGone,
    Expire,
    Finished,
    FirstToken,
    FleetState,
    Forget,
    Insert,
    Left,
    LoadVector,
    Op,
    Placed,
    Trim,
    Waiting,
    WorkerGone,
    WorkerPut,
)
from policies.state.load_rows import packed
from policies.state.ops import REGISTERS, Register
from radix.invariants import check

START_US = 1_000_000_000
TICK_US = 200_000
REPLICAS = ("one", "two")
STATIC = [WorkerPut(worker, 1, "static", f"http://{worker}") for worker in WORKERS]
WORDS = {kind.__name__: kind for kind in REGISTERS}
KINDS = (
    *(*["waiting"] * 5, *["placed"] * 6, "renewed", *["first"] * 4, *["finished"] * 2, *["answered"] * 2),
    *("left", "left", "put", "gone", "vector", "vector", "vector"),
    *("insert", "trim", "trim", "forget", "end gone", "audited", "expire"),
    *WORDS,
)

SAY_FIRST = ("first", "answered")

Drawn = tuple[str, int, int]


def made(kind: str, number: int, tick: int) -> Op:
    """One operation; a request has one replica and one worker, and no replica contradicts itself."""
    at_us, replica, subject = START_US + tick * TICK_US, REPLICAS[number % 2], number // 2 % 2
    worker, prompt, request_id = WORKERS[subject], path(PROMPTS[number % len(PROMPTS)]), f"r{number}"
    placed = Placed(
        request_id,
        START_US + number % 4 * TICK_US,
        worker,
        replica,
        400_000,
        300,
        500,
        (prompt,),
        flow=SERVED_FLOWS[number % len(SERVED_FLOWS)],
        safe_blocks=number % 3,
        junction_blocks=number % 3,
    )
    value = 1 + (tick + number) % 4
    waiting = Waiting(
        request_id,
        at_us,
        replica,
        START_US,
        START_US + value * TICK_US,
        LANE,
        worker if tick % 2 else "",
        WAITING_FLOW,
        value * 100_000,
        value * 300,
        500,
    )
    made_of: dict[str, Op] = {
        "waiting": waiting,
        "placed": placed,
        "renewed": Placed(request_id, at_us, worker, replica, 400_000, 300, 500),
        "first": FirstToken(request_id, at_us),
        "finished": Finished(request_id, at_us),
        "answered": Finished(request_id, at_us + TICK_US, at_us),
        "left": Left(replica, at_us),
        "vector": vector(replica, tick),
        "put": WorkerPut(
            worker, at_us, replica, f"http://{worker}", labels={"worker_class": CLASSES[value % 2]}
        ),
        "gone": WorkerGone(worker, at_us, replica),
        "insert": Insert(worker, prompt, at_us, number % 3 > 0, value + 1),
        "end gone": EndGone(worker, prompt, at_us, 1 + value % 2),
        "trim": Trim(worker, prompt, at_us),
        "forget": Forget(worker, at_us),
        "audited": Audited(at_us, replica, request_id, detail=str(value)),
        "expire": Expire(at_us, replica, request_id),
    }
    return word(WORDS[kind], subject, at_us, replica, value) if kind in WORDS else made_of[kind]


def vector(replica: str, tick: int) -> LoadVector:
    """Requests of a replica in flight at a moment, some of them at one of the workers."""
    numbers = (1 + tick) * 200_000, 1 + tick % 2, 300, 2 + tick, 900, tick * 70_000, 300_000, 500, 90_000
    row = packed(numbers if tick != 3 else [0] * len(numbers))
    return LoadVector(replica, START_US + tick * TICK_US + 1, (WORKERS[tick % 2],), row, full=tick % 3 == 1)


drawn_ops = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 4)),
    unique=True,
    min_size=10,
    max_size=30,
)


def folded(fleet: FleetState, ops: list[Op]) -> FleetState:
    for op in ops:
        fleet.apply(op)
    return fleet


def naive_fold(ops: list[Op]) -> NaiveFold:
    naive = NaiveFold()
    for op in ops:
        naive.apply(op)
    return naive


@given(drawn_ops, st.randoms(use_true_random=False), st.integers(0, 8))
def test_any_order_and_any_repetition_mean_the_same(drawn: list[Drawn], random: Random, ticks: int) -> None:
    ops = STATIC + [made(*each) for each in drawn]
    now_us = START_US + ticks * TICK_US
    shuffled = ops * 2
    random.shuffle(shuffled)
    half = len(shuffled) // 2
    fleet = folded(FleetState(), shuffled[:half])
    fleet.loads.collect(now_us, 10**12)
    folded(fleet, shuffled[half:])

    check(fleet.tree)
    naive, later_us = naive_fold(ops), START_US + 8 * TICK_US
    assert differences(fleet, naive, now_us) == {}
    assert congestion_differences(folded(FleetState(), shuffled), naive, later_us) == {}


def as_logged(drawn: list[Drawn]) -> list[Op]:
    """An order in which replicas could have said it: a request is placed first, and its end is its last word.

    An entry whose acknowledgement was lost comes again with all that followed. No first token is published of
    a request that was given up: a snapshot does not know such a request, so a replica that starts from it
    cannot tell which prefill is over, and is a little wrong about one backlog until that worker's next. For
    the same reason a renewed reservation publishes its first token again. A replica publishes one value of a
    register at one time: of two, each replica would keep the one it applied first.
    """
    said: set[tuple[type, str, int, str]] = set()
    placed: dict[int, Placed] = {}
    waited: set[int] = set()
    prefilled: set[int] = set()
    ended: set[int] = set()
    left_us = dict.fromkeys(REPLICAS, 0)
    vector_us = dict.fromkeys(REPLICAS, 0)
    ops: list[Op] = []
    for kind, number, tick in drawn:
        op = made(kind, number, tick)
        if isinstance(op, Waiting):
            if number in ended or number in placed:
                continue
            waited.add(number)
        elif isinstance(op, Placed | FirstToken | Finished):
            withdrawn = kind == "finished" and number in waited
            if number in ended or (kind != "placed" and number not in placed and not withdrawn):
                continue
            if isinstance(op, Placed):
                placed[number] = max(op, placed.get(number, op), key=lambda placed: placed.at_us)
            elif kind in SAY_FIRST and placed[number].at_us <= left_us[placed[number].replica]:
                continue
            if isinstance(op, Finished):
                ended.add(number)
            elif isinstance(op, FirstToken):
                prefilled.add(number)
            elif number in prefilled:
                ops.append(op)
                op = FirstToken(op.request_id, op.at_us)
        elif isinstance(op, Left):
            left_us[op.replica] = max(op.at_us, left_us[op.replica])
        elif isinstance(op, LoadVector):
            if op.at_us < vector_us[op.replica]:
                continue
            vector_us[op.replica] = op.at_us
        elif isinstance(op, Register):
            stamp = (type(op), op.key, op.at_us, op.replica)
            if stamp in said:
                continue
            said.add(stamp)
        ops.append(op)
    return ops


@given(drawn_ops, st.integers(0, 30), st.integers(0, 30), st.integers(0, 8))
def test_a_snapshot_mends_a_gap(drawn: list[Drawn], read: int, covered: int, ticks: int) -> None:
    """One replica knows the beginning and all of its own, then a snapshot, then the log behind that."""
    ops = STATIC + as_logged(drawn)
    now_us = START_US + ticks * TICK_US
    own = [op for op in ops if getattr(op, "replica", "") == "one"]
    own_ids = {op.request_id for op in own if isinstance(op, Placed | Waiting)}
    own += [op for op in ops if isinstance(op, FirstToken | Finished) and op.request_id in own_ids]
    fleet = folded(FleetState(), ops[:read] + own)
    fleet.loads.collect(now_us, 10**12)

    fleet.restore(folded(FleetState(), ops[:covered]).snapshot(), "one", missed=True)
    folded(fleet, ops[covered:])

    check(fleet.tree)
    assert differences(fleet, naive_fold(ops), now_us) == {}
