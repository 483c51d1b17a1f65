"""`PrefixTree` beside a plain dictionary, and the laws that replicas rely on."""

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from fakes.bytecodes import bytecodes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from radix import (
    FULL_ATTENTION,
    AttentionProfile,
    EndGone,
    Forget,
    Insert,
    PrefixTree,
    TreeOp,
    Trim,
    apply,
    chain_bytes,
    check_steps,
    finished,
    safe_blocks,
)
from radix.invariants import check
from radix.tree import JOINED_HOLDERS_MAX, SAMPLED_MAX, WIDE_ENDS_MIN

WORKERS = 4
WINDOW = AttentionProfile("sliding_window", window_tokens=128)
LINEAR = AttentionProfile("linear", retained_interval_tokens=512)
LOWEST = (-1, 0, 0)

Key = tuple[int, int, int]


def path(letters: str) -> bytes:
    """One block per letter; equal beginnings give equal hashes."""
    return chain_bytes(letters.encode(), root=1, block_bytes=1)


@dataclass
class Model:
    """The laws of the tree, written for reading: one entry per worker and block."""

    blocks_max: int = 1 << 30
    used: list[dict[bytes, int]] = field(default_factory=lambda: [{} for _ in range(WORKERS)])
    ends: list[dict[bytes, int]] = field(default_factory=lambda: [{} for _ in range(WORKERS)])
    trims: list[dict[bytes, int]] = field(default_factory=lambda: [{} for _ in range(WORKERS)])
    gone: list[dict[bytes, int]] = field(default_factory=lambda: [{} for _ in range(WORKERS)])
    forgot: list[int] = field(default_factory=lambda: [0] * WORKERS)
    floors: list[Key] = field(default_factory=lambda: [LOWEST] * WORKERS)
    capacity: list[int | None] = field(default_factory=lambda: [None] * WORKERS)
    floor: Key = LOWEST
    brought: dict[bytes, set[int]] = field(default_factory=dict)

    def key(self, block: bytes, at_us: int) -> Key:
        return at_us, -(len(block) // 8), int.from_bytes(block[-8:], "little")

    def insert(
        self,
        slot: int,
        path: bytes,
        at_us: int,
        end: bool,
        ends: int = 1,
        junction: int = 0,
        owner: int = 0,
    ) -> None:
        """A junction is as good as a request that ended there."""
        self.use(slot, path, at_us, end, ends, owner)
        if 0 < junction * 8 <= len(path):
            self.use(slot, path[: junction * 8], at_us, end=True)
        self.evict(slot)

    def use(self, slot: int, path: bytes, at_us: int, end: bool, ends: int = 1, owner: int = 0) -> None:
        for stop in range(8, len(path) + 1, 8):
            block = path[:stop]
            if (
                at_us < self.forgot[slot]
                or self.key(block, at_us) <= max(self.floor, self.floors[slot])
                or at_us < self.trims[slot].get(block, 0)
            ):
                break
            self.used[slot][block] = max(at_us, self.used[slot].get(block, 0))
            self.brought.setdefault(block, set()).update({owner} - {0})
            ended = end and stop > len(path) - 8 * ends and at_us >= self.gone[slot].get(block, 0)
            if ended and at_us > max(self.floor, self.floors[slot])[0]:
                self.ends[slot][block] = max(at_us, self.ends[slot].get(block, 0))

    def trim(self, slot: int, path: bytes, before_us: int) -> None:
        self.trims[slot][path] = max(before_us, self.trims[slot].get(path, 0))
        for held in (self.used[slot], self.ends[slot]):
            for block in [b for b, at_us in held.items() if b.startswith(path) and at_us < before_us]:
                del held[block]

    def end_gone(self, slot: int, path: bytes, before_us: int, ends: int = 1) -> None:
        for stop in range(max(8, len(path) - 8 * ends + 8), len(path) + 1, 8):
            block = path[:stop]
            self.gone[slot][block] = max(before_us, self.gone[slot].get(block, 0))
            if self.ends[slot].get(block, before_us) < before_us:
                del self.ends[slot][block]

    def forget(self, slot: int, before_us: int) -> None:
        self.forgot[slot] = max(before_us, self.forgot[slot])
        for held in (self.used[slot], self.ends[slot]):
            for block in [b for b, at_us in held.items() if at_us < before_us]:
                del held[block]

    def drop(self, slot: int) -> None:
        self.used[slot], self.ends[slot], self.trims[slot], self.gone[slot] = {}, {}, {}, {}
        self.forgot[slot], self.floors[slot], self.capacity[slot] = 0, LOWEST, None

    def set_capacity(self, slot: int, blocks: int | None) -> None:
        self.capacity[slot] = blocks
        self.evict(slot)

    def evict(self, slot: int) -> None:
        capacity = self.capacity[slot]
        while capacity is not None and len(self.used[slot]) > capacity:
            self.floors[slot] = min(self.key(*held) for held in self.used[slot].items())
            self.sweep()
        while len(self.distinct()) > self.blocks_max:
            self.floor = min(self.key(*held) for used in self.used for held in used.items())
            self.sweep()

    def sweep(self) -> None:
        for slot in range(WORKERS):
            floor = max(self.floor, self.floors[slot])
            self.used[slot] = {b: t for b, t in self.used[slot].items() if self.key(b, t) > floor}
            self.ends[slot] = {b: t for b, t in self.ends[slot].items() if t > floor[0]}

    def owned(self, slot: int) -> dict[int, int]:
        """Blocks that only one owner brought since any worker last held none of them."""
        held = self.distinct()
        self.brought = {block: owners for block, owners in self.brought.items() if block in held}
        only = [min(self.brought[block]) for block in self.used[slot] if len(self.brought[block]) == 1]
        return dict(Counter(only))

    def distinct(self) -> set[bytes]:
        return set().union(*self.used)

    def matched(self, slot: int, path: bytes) -> int:
        return sum(path[:stop] in self.used[slot] for stop in range(8, len(path) + 1, 8))

    def safe(self, slot: int, path: bytes, profile: AttentionProfile) -> int:
        ends = [len(block) // 8 for block in self.ends[slot] if path.startswith(block)]
        return safe_blocks(self.matched(slot, path), ends, profile)


slots = st.integers(0, WORKERS - 1)
times = st.integers(1, 30)
counts = st.sampled_from((1, 1, 2, 3, 20))
letters = st.text("ab", min_size=1, max_size=3).flatmap(
    lambda head: st.text("abc", max_size=6).map(lambda tail: head + tail)
)
bounds = st.none() | st.integers(0, 12)


class TreeBesideModel(RuleBasedStateMachine):
    """Every operation on both; every worker's match must agree after each."""

    blocks_max = 1 << 30

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree(blocks_max=self.blocks_max)
        self.tree.set_capacity(WORKERS - 1, None)
        self.model = Model(blocks_max=self.blocks_max)
        self.asked = {"a"}

    @rule(
        slot=slots,
        text=letters,
        at_us=times,
        end=st.booleans(),
        ends=counts,
        junction=st.integers(0, 5),
        owner=st.integers(0, 3),
    )
    def insert(
        self, slot: int, text: str, at_us: int, end: bool, ends: int, junction: int, owner: int
    ) -> None:
        self.asked.add(text)
        self.tree.insert(slot, path(text), at_us, end=end, ends=ends, junction=junction, owner=owner)
        self.model.insert(slot, path(text), at_us, end, ends, junction, owner)

    @rule(slot=slots, text=letters, before_us=times)
    def trim(self, slot: int, text: str, before_us: int) -> None:
        self.tree.trim(slot, path(text), before_us)
        self.model.trim(slot, path(text), before_us)

    @rule(slot=slots, text=letters, before_us=times, ends=counts)
    def end_gone(self, slot: int, text: str, before_us: int, ends: int) -> None:
        self.tree.end_gone(slot, path(text), before_us, ends=ends)
        self.model.end_gone(slot, path(text), before_us, ends)

    @rule(slot=slots, before_us=times)
    def forget(self, slot: int, before_us: int) -> None:
        self.tree.forget(slot, before_us)
        self.model.forget(slot, before_us)

    @rule(slot=slots)
    def drop(self, slot: int) -> None:
        self.tree.drop(slot)
        self.model.drop(slot)

    @rule(slot=slots, blocks=bounds)
    def set_capacity(self, slot: int, blocks: int | None) -> None:
        self.tree.set_capacity(slot, blocks)
        self.model.set_capacity(slot, blocks)

    @rule(order=st.permutations(range(WORKERS)))
    def move(self, order: list[int]) -> None:
        """A fresh replica that loads a snapshot, with slots of its own, is the same tree."""
        fresh = PrefixTree(blocks_max=self.blocks_max)
        for slot in range(WORKERS):
            fresh.set_capacity(slot, self.model.capacity[slot])
        fresh.load(self.tree.dump(order), order)
        assert fresh.dump(range(WORKERS)) == self.tree.dump(range(WORKERS))
        self.tree = fresh

    @invariant()
    def agrees(self) -> None:
        check(self.tree)
        assert self.tree.blocks == len(self.model.distinct())
        for slot in range(WORKERS):
            assert self.tree.held_blocks(slot) == len(self.model.used[slot])
            assert self.tree.owned_blocks(slot) == self.model.owned(slot)
            used, capacity = self.model.used[slot], self.model.capacity[slot]
            room = self.tree.room(slot)
            if capacity is None or not used:
                assert room is None
            else:
                assert room == (capacity - len(used), min(used.values()))
            for from_us in (1, 10, 31):
                expected = sum(at_us >= from_us for at_us in used.values())
                assert self.tree.blocks_since(slot, from_us) == expected
        for text in self.asked:
            asked = path(text + "c")
            for slot, used in enumerate(self.model.used):
                times = [used.get(asked[: 8 * stop], 0) for stop in range(1, len(text) + 2)]
                found = [self.tree.used_us(slot, asked, stop) for stop in range(1, len(text) + 2)]
                assert found == times
                assert self.tree.used_us(slot, asked, 0) == 0
            for profile in (FULL_ATTENTION, WINDOW, LINEAR):
                match = self.tree.match(asked, profile)
                assert match.blocks == len(text) + 1
                for slot in range(WORKERS):
                    assert match.matched[slot] == self.model.matched(slot, asked)
                    assert match.safe[slot] == self.model.safe(slot, asked, profile)


class BoundedTreeBesideModel(TreeBesideModel):
    """The same below a bound on the whole tree."""

    blocks_max = 10


TestTreeBesideModel = TreeBesideModel.TestCase
TestTreeBesideModel.settings = settings(stateful_step_count=25)
TestBoundedTreeBesideModel = BoundedTreeBesideModel.TestCase
TestBoundedTreeBesideModel.settings = settings(stateful_step_count=25)


inserts = st.builds(Insert, slots.map(str), letters.map(path), times, st.booleans(), counts)
trims = st.builds(Trim, slots.map(str), letters.map(path), times)
gone_ends = st.builds(EndGone, slots.map(str), letters.map(path), times, counts)
forgets = st.builds(Forget, slots.map(str), times)


@st.composite
def histories(draw: st.DrawFn, ops: st.SearchStrategy[TreeOp]) -> tuple[list[TreeOp], list[TreeOp]]:
    """The same operations twice, in two orders, some of them repeated."""
    first = draw(st.lists(ops, max_size=25))
    repeated = draw(st.lists(st.sampled_from(first), max_size=5)) if first else []
    return first, draw(st.permutations([*first, *repeated]))


def tree_of(
    ops: Sequence[TreeOp], blocks_max: int = 1 << 30, capacities: Sequence[int | None] = ()
) -> PrefixTree:
    tree = PrefixTree(blocks_max=blocks_max)
    tree.set_capacity(WORKERS - 1, None)
    for slot, blocks in enumerate(capacities):
        tree.set_capacity(slot, blocks)
    for op in ops:
        apply(tree, op, int(op.worker))
    check(tree)
    return tree


everyone = range(WORKERS)


@given(histories(inserts | trims | gone_ends | forgets))
def test_the_same_operations_in_any_order_and_number_give_the_same_tree(
    history: tuple[list[TreeOp], list[TreeOp]],
) -> None:
    first, second = map(tree_of, history)

    assert first.dump(everyone) == second.dump(everyone)


@given(
    st.lists(inserts | inserts | trims | gone_ends | forgets, max_size=25),
    st.lists(bounds, min_size=WORKERS, max_size=WORKERS),
)
def test_many_workers_are_safe_where_few_with_the_same_history_are(
    ops: list[TreeOp], capacities: list[int | None]
) -> None:
    """Each worker of the small tree has ten twins in the large one, whose ends are looked at as columns."""
    few, many = PrefixTree(), PrefixTree()
    for slot, blocks in enumerate(capacities):
        for tree, twins in ((few, 1), (many, WIDE_ENDS_MIN // 3)):
            for twin in range(twins):
                tree.set_capacity(slot + WORKERS * twin, blocks)
    for op in ops:
        apply(few, op, int(op.worker))
        for twin in range(WIDE_ENDS_MIN // 3):
            apply(many, op, int(op.worker) + WORKERS * twin)
        check(many)
        for text in ("aaabbbccc", "abcabc", "bacbac"):
            for profile in (WINDOW, LINEAR):
                expected = few.match(path(text), profile).safe.tolist()
                assert many.match(path(text), profile).safe.tolist() == expected * (WIDE_ENDS_MIN // 3)


def test_a_match_costs_the_same_however_many_workers_left_a_prompt_at_one_junction() -> None:
    """All workers share a system prompt of two blocks, with a junction behind it: 0.6 ms once for 1,000."""

    def cost(workers: int) -> int:
        tree = PrefixTree()
        for slot in range(workers):
            tree.insert(slot, path("ab" + "cdefgh"[slot % 6]), 5, end=True, junction=2)
        assert tree.match(path("abx"), WINDOW).safe.tolist() == [2] * workers
        return bytecodes(lambda: tree.match(path("abx"), WINDOW).safe)

    assert cost(1000) == cost(100)


@given(histories(inserts), st.lists(bounds, min_size=WORKERS, max_size=WORKERS))
def test_what_a_worker_keeps_depends_on_what_was_inserted_and_not_on_the_order(
    history: tuple[list[TreeOp], list[TreeOp]], capacities: list[int | None]
) -> None:
    first, second = (tree_of(ops, capacities=capacities) for ops in history)

    assert first.dump(everyone) == second.dump(everyone)


uses = st.tuples(slots, letters.map(path), times, st.integers(0, 2))


@given(
    st.lists(uses, max_size=12).flatmap(
        lambda ops: st.tuples(st.just(ops), st.permutations([*ops, *ops[:4]]))
    )
)
def test_whose_blocks_are_depends_on_what_was_inserted_and_not_on_the_order(
    orders: tuple[list[tuple[int, bytes, int, int]], list[tuple[int, bytes, int, int]]],
) -> None:
    first, second = PrefixTree(), PrefixTree()
    for tree, ops in zip((first, second), orders, strict=True):
        tree.set_capacity(WORKERS - 1, None)
        for slot, text, at_us, owner in ops:
            tree.insert(slot, text, at_us, end=False, owner=owner)
        check(tree)

    assert first.dump(everyone) == second.dump(everyone)


def test_a_session_that_grows_is_one_node_whoever_it_belongs_to() -> None:
    """Its engine reports the answer without an owner, before the next turn brings it."""
    tree = PrefixTree()
    tree.insert(0, path("ab"), 1, end=False, owner=7)
    tree.insert(0, path("abc"), 2, end=False)
    assert tree.owned_blocks(0) == {7: 2}
    tree.insert(0, path("abcd"), 3, end=False, owner=7)

    assert (tree.nodes, tree.owned_blocks(0)) == (1, {7: 4})


@given(histories(inserts), st.integers(1, 12))
def test_what_a_full_tree_keeps_depends_on_what_was_inserted_and_not_on_the_order(
    history: tuple[list[TreeOp], list[TreeOp]], blocks_max: int
) -> None:
    first, second = (tree_of(ops, blocks_max) for ops in history)

    assert first.dump(everyone) == second.dump(everyone)


def test_every_workers_match_comes_out() -> None:
    """Worker 0 holds 4 blocks, worker 1 two of them, worker 2 another second block, worker 3 nothing."""
    tree = tree_of(
        [Insert("0", path("abcd"), 1), Insert("1", path("ab"), 1), Insert("2", path("ax"), 1)],
    )

    match = tree.match(path("abcz"))

    assert match.matched.tolist() == [3, 2, 1, 0]
    assert match.safe.tolist() == [3, 2, 1, 0]
    assert match.blocks == 4


def test_a_thousand_workers_at_different_depths_all_come_out() -> None:
    """More than 8 workers part at once at depths 1 and 2, one at a time below."""
    tree = PrefixTree()
    text = "abcdefgh"
    depths = [1] * 500 + [2] * 400 + [3, 4, 5, 6, 7, 8] + [8] * 94
    for slot, depth in enumerate(depths):
        tree.insert(slot, path(text[:depth]), 1, end=False)

    assert tree.match(path(text)).matched.tolist() == depths
    check(tree)


def test_a_session_that_grows_on_one_worker_is_one_node() -> None:
    tree = tree_of([Insert("0", path("abcdefgh"[:length]), length) for length in range(1, 9)])

    assert (tree.nodes, tree.blocks) == (1, 8)
    assert tree.match(path("abcdex"), WINDOW).safe[0] == 5


def test_a_shared_run_whose_end_workers_lose_and_use_again_stays_one_node() -> None:
    """More holders than are compared at every use: the last to come back joins the divided nodes."""
    workers = range(2 * JOINED_HOLDERS_MAX)
    tree = tree_of([Insert(str(worker), path("abcdefgh"), 1) for worker in workers])
    for at_us, lost in enumerate(("abcdefgh", "abcdef", "abcd"), 2):
        for worker in workers:
            tree.trim(worker, path(lost), at_us)
            assert tree.nodes == 2 - (worker == workers[-1])
        for worker in workers:
            tree.insert(worker, path("abcdefgh"), at_us, end=True)
        check(tree)
        assert (tree.nodes, tree.blocks, tree.pairs) == (1, 8, len(workers))
    assert (tree.match(path("abcdefgh"), WINDOW).safe[: len(workers)] == 8).all()


def test_what_divided_a_run_of_few_holders_is_forgotten_when_the_run_is_used() -> None:
    tree = tree_of([Insert("0", path("abcd"), 1), Insert("0", path("abxy"), 2)])
    assert tree.nodes == 3
    tree.trim(0, path("abx"), 3)
    assert tree.nodes == 2
    tree.insert(0, path("abcd"), 4, end=True)
    check(tree)
    assert (tree.nodes, tree.blocks) == (1, 4)
    assert tree.match(path("abce"), WINDOW).safe[0] == 0


@pytest.mark.parametrize("writing", [True, False])
def test_nothing_is_joined_while_a_snapshot_is_written_or_restored(writing: bool) -> None:
    tree = tree_of([Insert("0", path("abcd"), 1), Insert("0", path("abxy"), 2)])
    tree.trim(0, path("abx"), 3)
    if writing:
        steps: Generator[object, None, object] = tree.dump_steps([0])
    else:
        steps = tree.load_steps(finished(check_steps(tree.dump([0]), 1)), [0])
    next(steps)
    tree.insert(0, path("abcd"), 4, end=True)
    assert tree.nodes == 2
    steps.close()
    tree.insert(0, path("abcd"), 5, end=True)
    assert tree.nodes == 1


def test_a_worker_is_safe_only_where_a_request_of_its_own_ended() -> None:
    """Both hold 4 blocks; worker 0 ended at 2 and at 4, worker 1 at 4 only."""
    tree = tree_of(
        [Insert("0", path("ab"), 1), Insert("0", path("abcd"), 2), Insert("1", path("abcd"), 3)],
    )

    assert tree.match(path("abcx"), WINDOW).matched.tolist()[:2] == [3, 3]
    assert tree.match(path("abcx"), WINDOW).safe.tolist()[:2] == [2, 0]
    assert tree.match(path("abcdx"), WINDOW).safe.tolist()[:2] == [4, 4]


def test_a_late_insert_below_a_trimmed_block_keeps_only_what_is_above() -> None:
    tree = tree_of([Trim("0", path("abc"), 10), Insert("0", path("abcd"), 9)])
    assert tree.match(path("abcd")).matched[0] == 2

    tree.insert(0, path("abcd"), 10, end=False)
    assert tree.match(path("abcd")).matched[0] == 4


def test_an_end_that_is_gone_takes_no_block_with_it() -> None:
    """Worker 0 could go on from 2, 3 and 4 blocks; 3 and 4 are gone, despite older words that come late."""
    tree = tree_of(
        [
            EndGone("0", path("abcd"), 10, ends=2),
            Insert("0", path("abcd"), 9, ends=3),
            Insert("0", path("abcx"), 9, end=False),
        ]
    )

    assert tree.match(path("abcd"), WINDOW).matched[0] == 4
    assert tree.match(path("abcd"), WINDOW).safe[0] == 2
    tree.insert(0, path("abcd"), 10, end=True)
    assert tree.match(path("abcd"), WINDOW).safe[0] == 4
    assert tree.match(path("abcx"), WINDOW).safe[0] == 2


def test_the_tail_of_the_oldest_run_is_evicted_first() -> None:
    """Room for 5: of abcd at 1 and xyz at 2, two blocks of the older run must go."""
    tree = tree_of([Insert("0", path("abcd"), 1), Insert("0", path("xyz"), 2)], capacities=[5])

    assert tree.match(path("abcd")).matched[0] == 2
    assert tree.match(path("xyz")).matched[0] == 3


def test_a_full_tree_takes_the_oldest_blocks_from_all_their_holders() -> None:
    """Room for 4 blocks: abc, last used at 2 by any worker, makes room for wxyz, used at 3."""
    tree = tree_of(
        [Insert("0", path("abc"), 1), Insert("1", path("abc"), 2), Insert("2", path("wxyz"), 3)], blocks_max=4
    )

    assert tree.match(path("abc")).matched.tolist() == [0, 0, 0, 0]
    assert tree.match(path("wxyz")).matched.tolist() == [0, 0, 4, 0]


def test_a_slot_starts_from_nothing_after_drop() -> None:
    tree = tree_of([Insert("0", path("abc"), 5), Trim("0", path("ab"), 9), Forget("0", 7)], capacities=[2])

    tree.drop(0)
    tree.insert(0, path("abc"), 1, end=False)

    assert tree.match(path("abc")).matched[0] == 3


def test_stale_queue_entries_do_not_pile_up() -> None:
    """A session of 2,000 turns beside a bound pushes an entry per turn, and stays one node."""
    tree = PrefixTree(blocks_max=3000)
    tree.set_capacity(0, 3000)
    tree.insert(1, chain_bytes(bytes(3500), 7, 1), 1, end=False)
    long = chain_bytes(bytes(2000), 1, 1)
    for turn in range(1, 2001):
        tree.insert(0, long[: turn * 8], turn, end=False)

    assert tree.holdings[0].queue is not None
    assert len(tree.holdings[0].queue) < 100
    assert tree.queue is not None
    assert len(tree.queue) < 100
    check(tree)


@pytest.mark.parametrize("broken", [b"1234567", b"123456789"])
def test_a_path_that_is_not_whole_hashes_is_refused(broken: bytes) -> None:
    tree = PrefixTree()
    with pytest.raises(ValueError, match="not whole block hashes"):
        tree.insert(0, broken, 1, end=False)
    with pytest.raises(ValueError, match="not whole block hashes"):
        tree.end_gone(0, broken, 1)
    with pytest.raises(ValueError, match="not whole block hashes"):
        tree.match(broken)
    with pytest.raises(ValueError, match="not whole block hashes"):
        tree.trim(0, broken, 1)


def test_a_trim_of_nothing_and_a_time_out_of_range_are_refused() -> None:
    tree = PrefixTree()
    with pytest.raises(ValueError, match="path of a block"):
        tree.trim(0, b"", 1)
    with pytest.raises(ValueError, match="not a log time"):
        tree.forget(0, 1 << 63)
    with pytest.raises(ValueError, match="not a log time"):
        tree.insert(0, path("a"), -1, end=False)
    assert (tree.newest_us, tree.blocks) == (0, 0)


def test_matches_agree_with_dynamos_tree() -> None:
    """A differential oracle, where it is installed: the same stores and removals, the same scores."""
    core = pytest.importorskip(
        "dynamo._core",
        reason="`pip install --no-deps ai-dynamo-runtime` to compare with Dynamo's radix tree",
        exc_type=ImportError,
    )

    @given(st.lists(inserts | trims, max_size=20))
    def compare(ops: list[TreeOp]) -> None:
        tree, other = tree_of([]), core.RadixTree()
        held: list[set[bytes]] = [set() for _ in everyone]
        for at_us, op in enumerate(ops, start=1):
            slot = int(op.worker)
            if isinstance(op, Insert):
                tree.insert(slot, op.path, at_us, end=False)
                held[slot] |= {op.path[:stop] for stop in range(8, len(op.path) + 1, 8)}
                other.apply_event(slot, stored(at_us, op.path))
            elif isinstance(op, Trim):
                tree.trim(slot, op.path, at_us)
                gone = {block for block in held[slot] if block.startswith(op.path)}
                held[slot] -= gone
                other.apply_event(slot, removed(at_us, sorted(gone, key=len, reverse=True)))
            for asked in (op.path for op in ops if not isinstance(op, Forget)):
                scores = other.find_matches(memoryview(asked).cast("Q").tolist()).scores
                theirs = [scores.get((slot, 0), 0) for slot in everyone]
                assert tree.match(asked).matched.tolist() == theirs

    compare()


def stored(event_id: int, path: bytes) -> bytes:
    blocks = [{"block_hash": block, "tokens_hash": block} for block in memoryview(path).cast("Q")]
    data = {"stored": {"parent_hash": None, "blocks": blocks}}
    return msgspec.json.encode({"event_id": event_id, "data": data, "dp_rank": 0})


def removed(event_id: int, blocks: list[bytes]) -> bytes:
    data = {"removed": {"block_hashes": [int.from_bytes(block[-8:], "little") for block in blocks]}}
    return msgspec.json.encode({"event_id": event_id, "data": data, "dp_rank": 0})


@given(st.data())
def test_the_newest_blocks_are_those_that_a_smaller_cache_would_hold(data: st.DataObject) -> None:
    """The same uses, in order, on a worker without a bound and on one with a bound of n blocks.

    The split is found to the microsecond, so blocks of one use are on one side of it.
    """
    tree, small = PrefixTree(block_tokens=1), PrefixTree(block_tokens=1)
    blocks = data.draw(st.integers(1, 12))
    small.set_capacity(0, blocks)
    prompts = data.draw(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=12))
    for at_us, letters in enumerate(prompts, 1):
        for one in (tree, small):
            one.insert(0, path(letters), at_us, end=False)

    from_us = tree.newest_from_us(0, blocks)

    assert tree.blocks_since(0, from_us) <= blocks
    assert not from_us or tree.blocks_since(0, from_us - 1) > blocks
    for letters in prompts:
        newest = tree.newest_blocks(0, path(letters), from_us)
        held = small.match(path(letters)).matched_at(0)
        assert newest <= held
        assert small.used_us(0, path(letters), held) < from_us or newest == held
        assert tree.newest_blocks(0, path(letters), 0) == len(letters)


def test_of_many_runs_a_sample_tells_what_is_newest() -> None:
    tree = PrefixTree(block_tokens=1)
    runs = 4 * SAMPLED_MAX
    for number in range(runs):
        tree.insert(0, number.to_bytes(8, "big") + b"x" * 8, number + 1, end=False)
    assert tree.newest_from_us(0, runs) == pytest.approx(runs / 2, rel=0.01)
    assert tree.newest_from_us(0, 2 * runs) == 0
    assert tree.newest_from_us(1, 5) == 0
