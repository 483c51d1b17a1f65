"""Both forms of a placement have the same effect, after any loss at the reader; the short one is short."""

import random
from array import array
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    FULL_ATTENTION,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    Left,
    Op,
    Placed,
    WorkerPut,
    decode_ops,
    encode_op,
    encode_ops,
)
from radix import HASH_BYTES
from router.shared import placed_forms
from router.shared.known_paths import KnownPaths
from router.shared.placed_forms import (
    AGAIN_US,
    ASKED_PER_S_MAX,
    LOOK_US,
    WAIT_US,
    WAITING_MAX,
    Onward,
    PathAsked,
    PathTold,
    PlacedForms,
    decode_entry,
)

WORKERS = ("10.0.0.1:8000", "10.0.0.2:8000")
START_US = 1_700_000_000_000_000


def random_path(chance: random.Random, blocks: int) -> bytes:
    return array("Q", [chance.getrandbits(64) for _ in range(blocks)]).tobytes()


def placed(number: int, path: bytes, replica: str = "one", safe_blocks: int = 0) -> Placed:
    return Placed(
        f"{replica}-{number:08x}",
        START_US + number,
        WORKERS[number % 2],
        replica,
        400_000,
        1_000,
        128_000,
        (path,),
        ends=False,
        flow="normal/tenant",
        safe_blocks=safe_blocks,
    )


def entry(*bodies: bytes) -> bytes:
    return bytes((0x90 | len(bodies),)) + b"".join(bodies)


def sent(forms: PlacedForms, op: Op) -> placed_forms.LogOp:
    """Return the operation that others read."""
    decoded = decode_entry(entry(forms.outgoing(encode_op(op))))
    assert (decoded.unknown, decoded.invalid) == (0, 0)
    return decoded.ops[0]


def asked(forms: PlacedForms) -> list[placed_forms.LogOp]:
    ops = decode_entry(entry(*forms.outbox)).ops
    forms.outbox.clear()
    return ops


def test_a_turn_of_a_prompt_of_500_blocks_is_told_in_300_bytes_and_read_as_it_was() -> None:
    chance = random.Random(1)
    one, two = PlacedForms("one"), PlacedForms("two")
    path = random_path(chance, 500)
    first, second = placed(1, path), placed(2, path + random_path(chance, 8))
    assert sent(one, first) == first
    assert list(two.incoming(first, START_US)) == [first]
    body = one.outgoing(encode_op(second))
    assert len(body) <= 300
    assert len(encode_op(second)) > 4_000
    (op,) = decode_entry(entry(body)).ops
    assert isinstance(op, Onward)
    assert op.at_us == second.at_us
    assert PathAsked("one", "", path[-8:], 500).at_us == PathTold(path).at_us == 0
    assert list(two.incoming(op, START_US)) == [second]
    assert (one.onward, two.unknown) == (1, 0)


def test_while_a_replica_does_not_read_the_short_form_prompts_are_told_whole_and_remembered() -> None:
    everybody: list[str] = []
    forms = PlacedForms("one", onward=lambda: bool(everybody))
    path = random_path(random.Random(1), 20)
    assert sent(forms, placed(1, path)) == placed(1, path)
    assert sent(forms, placed(2, path)) == placed(2, path)
    everybody.append("reads it")
    assert isinstance(sent(forms, placed(3, path)), Onward)


def test_an_older_version_counts_the_short_form_as_unknown_and_reads_the_rest_of_the_entry() -> None:
    forms = PlacedForms("one")
    path = random_path(random.Random(1), 20)
    sent(forms, placed(1, path))
    body = forms.outgoing(encode_op(placed(2, path)))
    decoded = decode_ops(entry(body, encode_op(Finished("r", 1))))
    assert (decoded.ops, decoded.unknown, decoded.invalid) == ([Finished("r", 1)], 1, 0)


def test_everything_but_a_placement_of_one_prompt_goes_out_as_it_is() -> None:
    forms = PlacedForms("one")
    path = random_path(random.Random(1), 20)
    batch = msgspec.structs.replace(placed(1, path), paths=(path, path))
    renewal = msgspec.structs.replace(placed(1, path), paths=())
    for op in (batch, renewal, batch, renewal, Finished("r", 1), FirstToken("r", 1), Left("one", 1)):
        assert forms.outgoing(encode_op(op)) == encode_op(op)


def test_an_unknown_anchor_is_asked_for_once_and_its_prompts_come_with_the_answer() -> None:
    chance = random.Random(1)
    one, late = PlacedForms("one"), PlacedForms("late")
    path = random_path(chance, 20)
    sent(one, placed(1, path))
    second, third = placed(2, path + random_path(chance, 2)), placed(3, path + random_path(chance, 2))
    for op in (second, third):
        assert list(late.incoming(sent(one, op), START_US)) == [msgspec.structs.replace(op, paths=())]
    (question,) = asked(late)
    assert question == PathAsked("late", "one", path[-HASH_BYTES:], 20)
    assert list(one.incoming(question, START_US)) == []
    (answer,) = asked(one)
    assert answer == PathTold(path)
    assert list(late.incoming(answer, START_US)) == [second, third]
    assert list(late.incoming(answer, START_US)) == [], "an answer twice"
    assert (late.unknown, late.unresolved) == (2, 0)


def test_what_goes_on_from_a_prompt_that_waits_waits_with_it() -> None:
    chance = random.Random(1)
    one, late = PlacedForms("one"), PlacedForms("late")
    first = random_path(chance, 20)
    second = first + random_path(chance, 2)
    third = second + random_path(chance, 2)
    sent(one, placed(1, first))
    for number, path in ((2, second), (3, third)):
        late.incoming(sent(one, placed(number, path)), START_US)
    assert list(late.incoming(PathTold(first), START_US)) == [placed(2, second), placed(3, third)]


def test_a_prompt_that_comes_whole_answers_the_question_as_well() -> None:
    chance = random.Random(1)
    one, late = PlacedForms("one"), PlacedForms("late")
    path = random_path(chance, 20)
    sent(one, placed(1, path))
    second = placed(2, path + random_path(chance, 2))
    late.incoming(sent(one, second), START_US)
    again = placed(4, path, "two")
    assert list(late.incoming(again, START_US)) == [again, second]


def test_a_question_that_nobody_answers_goes_to_all_once_and_is_given_up() -> None:
    chance = random.Random(1)
    one, late = PlacedForms("one"), PlacedForms("late")
    path = random_path(chance, 20)
    sent(one, placed(1, path))
    second = placed(2, path + random_path(chance, 2), safe_blocks=20)
    late.incoming(sent(one, second), START_US)
    assert len(asked(late)) == 1
    assert list(late.due(START_US + LOOK_US)) == []
    assert asked(late) == []
    assert list(late.due(START_US + AGAIN_US)) == []
    (question,) = asked(late)
    assert question == PathAsked("late", "", path[-HASH_BYTES:], 20)
    assert list(late.due(START_US + 3 * AGAIN_US)) == []
    assert asked(late) == []
    (given_up,) = late.due(START_US + WAIT_US)
    assert given_up == msgspec.structs.replace(second, paths=(b"",), safe_blocks=0)
    assert (late.unknown, late.unresolved) == (1, 1)
    assert list(late.due(START_US + 2 * WAIT_US)) == []
    assert list(late.incoming(PathTold(path), START_US)) == []


def test_questions_and_answers_are_bounded_in_their_rate_and_what_waits_in_number() -> None:
    chance = random.Random(1)
    late, one = PlacedForms("late"), PlacedForms("one")
    rest = placed(1, random_path(chance, 1))
    for number in range(2 * ASKED_PER_S_MAX):
        late.incoming(Onward(number.to_bytes(HASH_BYTES, "little"), 20, rest), START_US)
    questions = asked(late) if len(late.outbox) < 16 else late.outbox
    assert len(questions) == ASKED_PER_S_MAX
    for _ in range(2 * WAITING_MAX):
        late.incoming(Onward(bytes(HASH_BYTES), 20, rest), START_US)
    assert late.unknown - late.unresolved == WAITING_MAX
    path = random_path(chance, 20)
    one.known.tell(path)
    for _ in range(2 * ASKED_PER_S_MAX):
        one.incoming(PathAsked("late", "one", path[-HASH_BYTES:], 20), START_US)
    assert len(one.outbox) == ASKED_PER_S_MAX


def test_nonsense_is_refused_where_it_enters() -> None:
    chance = random.Random(1)
    forms = PlacedForms("one")
    encode = msgspec.msgpack.encode
    whole = placed(1, random_path(chance, 20))
    for bad in (
        [17, b"short", 20, whole],
        [17, bytes(8), 0, whole],
        [17, bytes(8), 1 << 22, whole],
        [17, bytes(8), 20, [10]],
        [18, "x" * 300, "", bytes(8), 20],
        [19, "text"],
    ):
        assert (decode_entry(encode([bad])).ops, decode_entry(encode([bad])).invalid) == ([], 1)
    with pytest.raises(ValueError, match="one prompt"):
        forms.incoming(Onward(bytes(8), 20, msgspec.structs.replace(whole, paths=())), START_US)
    forms.incoming(Onward(whole.paths[0][-8:], 20, whole), START_US)
    liar = random_path(chance, 5) + whole.paths[0][-8:]
    (given_up,) = forms.incoming(PathTold(liar), START_US)
    assert given_up == msgspec.structs.replace(whole, paths=(b"",)), "an answer of another depth is none"
    assert list(forms.incoming(PathTold(b""), START_US)) == []
    assert list(forms.incoming(PathTold(b"odd"), START_US)) == []


class Side:
    """A replica: its fold, its known prompts, and its place in the log."""

    def __init__(self, name: str, log: list[tuple[str, list[bytes]]]) -> None:
        self.name, self.log = name, log
        self.position = 0
        self.fleet = FleetState(FleetRules(memory_s=30.0))
        for worker in WORKERS:
            self.fleet.apply(WorkerPut(worker, 1, "static", f"http://{worker}"))
        self.forms = PlacedForms(name, KnownPaths(1 << 20, blocks_min=4), onward=lambda: name != "old")

    def publish(self, *ops: Op) -> None:
        for op in ops:
            self.fleet.apply(op)
        bodies = [self.forms.outgoing(encode_op(op)) for op in ops]
        self.log.append((self.name, bodies))

    def read(self, until: int, now_us: int = START_US) -> None:
        while self.position < min(until, len(self.log)):
            writer, bodies = self.log[self.position]
            self.position += 1
            if writer == self.name:
                continue
            for op in decode_entry(entry(*bodies)).ops:
                for whole in self.forms.incoming(op, now_us):
                    self.fleet.apply(whole)
        if self.forms.outbox:
            self.log.append((self.name, list(self.forms.outbox)))
            self.forms.outbox.clear()


def seen(fleet: FleetState, paths: list[bytes]) -> object:
    """Return the workers' caches and loads as decisions see them."""
    rows = np.array([fleet.worker(worker).slot for worker in WORKERS], dtype=np.intp)
    now_us = START_US + 10_000
    return (
        [
            fleet.candidates(rows, (path,), FULL_ATTENTION, 1e9, 256.0, now_us).matched_tokens.tolist()
            for path in paths
        ],
        [fleet.tree.held_blocks(int(row)) for row in rows],
        fleet.loads.inflight_tokens[rows].tolist(),
        fleet.loads.prefill_us[rows].tolist(),
        {key: (each.slot, each.at_us, each.path) for key, each in fleet.loads.requests.items()},
        fleet.fairness.service_us("normal/tenant", now_us),
    )


Step = tuple[int, int, int, int]
steps = st.lists(
    st.tuples(
        st.integers(0, 7),  # what happens
        st.integers(0, 20),  # to which session
        st.integers(1, 6),  # new blocks
        st.integers(0, 30),  # the place in the log
    ),
    min_size=1,
    max_size=50,
)


@given(steps, st.integers(0, 2**32))
def test_the_fold_of_a_log_in_the_short_form_is_that_of_the_whole_form(drawn: list[Step], seed: int) -> None:
    """Readers: a late joiner, one after a gap, one after repeated entries, an old replica."""
    chance = random.Random(seed)
    log: list[tuple[str, list[bytes]]] = []
    one, two, old, reader = (Side(name, log) for name in ("one", "two", "old", "reader"))
    sides = [one, two, old, reader]
    by_name: dict[str, Callable[..., None]] = {"one": one.publish, "two": two.publish, "old": old.publish}
    system = random_path(chance, 6)
    sessions: list[bytes] = []
    paths: list[bytes] = []
    told: list[Op] = []
    for number, (what, which, new, place) in enumerate(drawn):
        writer = chance.choice(("one", "one", "two", "old"))
        if what < 5:
            junction = 0
            if what == 0 or not sessions:
                path = system + random_path(chance, new)
                junction = 6 if sessions else 0
                sessions.append(path)
            else:
                path = sessions[which % len(sessions)]
                path += random_path(chance, new) if what < 4 else b""
                sessions[which % len(sessions)] = path
            op = placed(number, path, writer, junction)
            ops = [op, *([FirstToken(op.request_id, op.at_us + 1)] if chance.random() < 0.3 else ())]
            by_name[writer](*ops)
            told += ops
            paths.append(path)
        elif what == 5:
            chance.choice(sides).read(len(log) - chance.randrange(3))
        elif what == 6:  # it reads a part of the log again, or restarts its memory of prompts
            reader.position = min(reader.position, place)
            if chance.random() < 0.5:
                reader.forms = PlacedForms("reader", KnownPaths(1 << 20, blocks_min=4))
        elif chance.random() < 0.5:  # an entry comes twice
            if log:
                log.append(log[place % len(log)])
        else:
            chance.choice((one, two)).forms.reset()
    for _ in range(4):  # no replica that waits for prompts writes a snapshot (`router.shared.keeper`)
        for side in sides if reader.forms.waits else ():
            side.read(len(log))
    late = Side("late", log)
    snapshot = [piece for piece in reader.fleet.snapshot_steps() if piece is not None]
    for _ in late.fleet.restore_steps(snapshot, "late", missed=True):
        pass
    late.position = reader.position
    sides.append(late)
    for _ in range(4):
        for side in sides:
            side.read(len(log))
    reference = FleetState(FleetRules(memory_s=30.0))
    for worker in WORKERS:
        reference.apply(WorkerPut(worker, 1, "static", f"http://{worker}"))
    for op in decode_ops(encode_ops(told)).ops:
        reference.apply(op)
    for side in sides:
        assert side.forms.unresolved == 0
        expected, actual = seen(reference, paths), seen(side.fleet, paths)
        if side is late:  # a snapshot lacks the prompts of requests in flight, and some charges
            expected, actual = expected[:4], actual[:4]
        assert actual == expected, side.name
