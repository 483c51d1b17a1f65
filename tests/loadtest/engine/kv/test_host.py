"""Host memory: accounts, and the order of eviction."""

from random import Random

from loadtest.engine.kv.host import HostMemory
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.tree import Node, RadixTree

SIZE = 64


class Heard(KvListener):
    def __init__(self) -> None:
        self.gone: list[tuple[int, str]] = []

    def removed(self, blocks: bytes, group: str, medium: str) -> None:
        self.gone.append((len(blocks) // 8, medium))


def memory(full: int, windows: int = 0, needed: int = 0) -> tuple[RadixTree, HostMemory, Heard]:
    tree, heard = RadixTree(), Heard()
    host = HostMemory(
        tree,
        heard,
        block_tokens=SIZE,
        full_tokens=full * SIZE,
        swa_tokens=windows * SIZE,
        window_blocks=needed,
    )
    tree.observers.append(host)  # type: ignore[arg-type]
    return tree, host, heard


def run(tree: RadixTree, parent: Node, blocks: int, seed: int) -> Node:
    return tree.attach(parent, Random(seed).randbytes(8 * blocks))


def test_the_least_recently_used_leaf_goes_first_from_its_tail() -> None:
    tree, host, heard = memory(full=20)
    old, new = run(tree, tree.root, 10, 1), run(tree, tree.root, 10, 2)
    for node in (old, new):
        assert host.hold(node)
        host.touch(node)
    assert host.make_room(3 * SIZE)

    assert heard.gone == [(3, "CPU_PINNED")]
    assert host.full.held == 17 * SIZE
    assert [node.blocks for node in tree.nodes()] == [10, 7]
    host.touch(next(node for node in tree.nodes() if node.blocks == 7))
    assert host.make_room(4 * SIZE)
    assert sorted(node.blocks for node in tree.nodes()) == [7, 9]


def test_what_is_on_the_device_locked_pinned_or_continued_stays() -> None:
    tree, host, _ = memory(full=40)
    on_device, locked, pinned, parent = (run(tree, tree.root, 10, seed) for seed in range(4))
    for node in (on_device, locked, pinned, parent):
        assert host.hold(node)
    tree.set_device(on_device, device=True)
    locked.locks = 1
    pinned.host_locks = 1
    run(tree, parent, 1, 9)

    assert not host.make_room(SIZE)
    host.release(pinned)
    assert host.make_room(10 * SIZE)
    assert host.full.held == 30 * SIZE


def test_more_than_there_is_evicts_nothing() -> None:
    tree, host, heard = memory(full=20)
    assert host.hold(run(tree, tree.root, 10, 1))

    assert not host.make_room(21 * SIZE)
    assert not host.make_window_room(1)
    assert heard.gone == []


def test_a_leaf_takes_the_parents_along_from_which_nothing_can_go_on() -> None:
    """Windows of two blocks: the middle run has none, so with its leaf it is useless; the head has one."""
    tree, host, heard = memory(full=40, windows=20, needed=2)
    head = run(tree, tree.root, 10, 1)
    middle = run(tree, head, 10, 2)
    leaf = run(tree, middle, 3, 3)
    for node in (head, middle, leaf):
        assert host.hold(node)
    assert host.hold_window(head)
    assert host.hold_window(leaf)
    host.touch(leaf)
    assert host.make_room(21 * SIZE)

    assert heard.gone == [(3, "CPU_PINNED"), (10, "CPU_PINNED")]
    assert list(tree.nodes()) == [head]
    assert host.swa.held == 10 * SIZE


def test_windows_go_alone_from_inside_a_path_and_with_the_run_at_its_end() -> None:
    tree, host, heard = memory(full=40, windows=6, needed=2)
    inner = run(tree, tree.root, 3, 1)
    leaf = run(tree, inner, 3, 2)
    for node in (inner, leaf):
        assert host.hold(node)
        assert host.hold_window(node)
    assert host.make_window_room(3 * SIZE)
    assert inner.host
    assert not inner.host_swa
    assert heard.gone == []

    assert host.make_window_room(6 * SIZE)
    assert list(tree.nodes()) == []
    assert host.full.held == host.swa.held == 0


def test_a_pin_stays_on_the_lower_part_of_a_run_that_is_cut() -> None:
    tree, host, _ = memory(full=20)
    node = run(tree, tree.root, 10, 1)
    assert host.hold(node)
    node.host_locks = 1
    upper = tree.split(node, 4)

    assert (upper.host_locks, node.host_locks) == (0, 1)
    assert not host.make_room(11 * SIZE)
    host.release(node)
    assert host.make_room(20 * SIZE)


def test_all_that_hangs_below_a_lost_run_is_dropped() -> None:
    tree, host, _ = memory(full=40)
    lost = run(tree, tree.root, 5, 1)
    tree.set_device(lost, device=True)
    for seed in (2, 3):
        child = run(tree, lost, 5, seed)
        assert host.hold(child)
        assert host.hold(run(tree, child, 5, seed + 10))
    host.drop_below(lost)

    assert list(tree.nodes()) == [lost]
    assert host.full.held == 0


def test_clearing_leaves_what_is_in_use() -> None:
    tree, host, _ = memory(full=40, windows=20, needed=2)
    used, unused, on_device = (run(tree, tree.root, 5, seed) for seed in range(3))
    for node in (used, unused, on_device):
        assert host.hold(node)
        assert host.hold_window(node)
    used.locks = 1
    tree.set_device(on_device, device=True)
    host.clear()

    assert [node for node in tree.nodes() if node.host] == [used]
    assert unused.parent is None
    assert host.full.held == host.swa.held == 5 * SIZE


def test_room_for_a_part_of_a_block_costs_the_whole_block() -> None:
    """The pool need not be whole blocks: with half of one over, nine and a half have to go, so all ten do."""
    tree, host, heard = memory(full=10)
    host.full.capacity += SIZE // 2
    node = run(tree, tree.root, 10, 1)
    assert host.hold(node)
    host.touch(node)

    assert host.make_room(10 * SIZE)

    assert heard.gone == [(10, "CPU_PINNED")]
    assert host.full.held == 0
