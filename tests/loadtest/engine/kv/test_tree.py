"""Runs in a tree: following, cutting and joining them."""

from fakes.kv_requests import blocks_of
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv.tree import Node, RadixTree


class Watcher:
    """Writes down the calls on observers."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def split(self, upper: Node, lower: Node) -> None:
        self.heard.append(f"split {upper.start}..{upper.end} {lower.start}..{lower.end}")

    def merged(self, gone: Node, into: Node) -> None:
        self.heard.append(f"merged {into.start}..{into.end}")


def grow(tree: RadixTree, text: str) -> Node:
    """Insert a text as `KvCache` does, on the device."""
    blocks = blocks_of(text)
    path, partial, position = tree.walk(tree.root, blocks, len(text))
    if partial is not None:
        path.append(tree.split(partial, position) if position < partial.end else partial)
    node = path[-1] if path else tree.root
    if position < len(text):
        node = tree.attach(node, blocks[position * 8 :])
        tree.set_device(node, device=True)
    return node


def test_a_split_leaves_the_lower_part_the_same_object() -> None:
    """Leases and entries of the LRU order hold the lower part."""
    tree = RadixTree()
    tree.observers.append(watcher := Watcher())
    node = grow(tree, "abcdef")
    node.locks, node.swa_locks, node.used, node.swa_used = 3, 2, 7, 5
    node.swa = node.host = node.host_swa = True
    node.state, node.hits = 4, 1
    upper = tree.split(node, 2)

    assert tree.root.children == {blocks_of("a"): upper}
    assert (upper.start, upper.end, node.start, node.end, node.parent) == (0, 2, 2, 6, upper)
    assert upper.key + node.key == blocks_of("abcdef")
    assert (upper.swa_locks, upper.used, upper.swa_used, upper.hits) == (2, 7, 5, 1)
    assert upper.device
    assert upper.swa
    assert upper.host
    assert upper.host_swa
    assert upper.device_children == 1
    assert watcher.heard == ["split 0..2 2..6"]


def test_a_lock_below_counts_once_above() -> None:
    """Locks are those of leases that end here and of children that are locked."""
    tree = RadixTree()
    node = grow(tree, "abcd")
    node.locks = 3

    assert tree.split(node, 2).locks == 1


def test_the_state_at_the_end_of_a_run_stays_there_in_a_split() -> None:
    tree = RadixTree()
    node = grow(tree, "abcd")
    node.state = 0

    assert tree.split(node, 2).state is None
    assert node.state == 0


def chain(tree: RadixTree) -> tuple[Node, Node]:
    lower = grow(tree, "abcdef")
    return tree.split(lower, 4), lower


def test_runs_that_differ_in_nothing_are_joined() -> None:
    tree = RadixTree()
    tree.observers.append(watcher := Watcher())
    upper, lower = chain(tree)
    tree.split(upper, 2)
    tree.merge(lower)

    assert list(tree.nodes()) == [lower]
    assert lower.key == blocks_of("abcdef")
    assert (lower.start, lower.parent, upper.parent) == (0, tree.root, None)
    assert watcher.heard[2:] == ["merged 2..6", "merged 0..6"]


def test_runs_that_differ_in_anything_are_not_joined() -> None:
    changes = {
        "used": 9,
        "swa": True,
        "host": True,
        "host_swa": True,
        "host_used": 9,
        "hits": 9,
        "state": 0,
        "locks": 1,
        "swa_locks": 1,
        "host_locks": 1,
        "device": False,
    }
    for name, value in changes.items():
        tree = RadixTree()
        upper, lower = chain(tree)
        setattr(upper, name, value)
        tree.merge(lower)
        assert lower.parent is upper, name
    tree = RadixTree()
    upper, lower = chain(tree)
    upper.swa = lower.swa = True
    upper.swa_used = 9
    tree.merge(lower)
    assert lower.parent is upper


def test_a_run_with_other_children_is_not_joined() -> None:
    tree = RadixTree()
    upper, lower = chain(tree)
    grow(tree, "abcdX")
    tree.merge(lower)

    assert lower.parent is upper


def test_a_detached_run_is_found_no_more() -> None:
    tree = RadixTree()
    upper, lower = chain(tree)
    tree.detach(lower)

    assert upper.device_children == 0
    assert tree.walk(tree.root, blocks_of("abcdef"), 6) == ([upper], None, 4)


def test_a_walk_stops_at_its_limit_inside_a_run() -> None:
    tree = RadixTree()
    node = grow(tree, "abcdef")

    assert tree.walk(tree.root, blocks_of("abcdef"), 6) == ([node], None, 6)
    assert tree.walk(tree.root, blocks_of("abcdef"), 3) == ([], node, 3)
    assert tree.walk(tree.root, blocks_of("abXdef"), 6) == ([], node, 2)
    assert tree.walk(tree.root, blocks_of("Xbcdef"), 6) == ([], None, 0)


def test_a_walk_may_begin_below_the_root() -> None:
    tree = RadixTree()
    upper, lower = chain(tree)

    assert tree.walk(upper, blocks_of("abcdefg"), 7) == ([lower], None, 6)
    assert tree.walk(lower, blocks_of("abcdefg"), 7) == ([], None, 6)


@given(st.lists(st.text("ab", min_size=1, max_size=20), max_size=8), st.text("ab", max_size=20))
def test_a_walk_finds_the_longest_common_prefix_of_any_inserted_text(known: list[str], asked: str) -> None:
    tree = RadixTree()
    for text in known:
        grow(tree, text)
    path, partial, found = tree.walk(tree.root, blocks_of(asked), len(asked))

    prefixes = {text[:end] for text in known for end in range(1, len(text) + 1)}
    assert found == max((end for end in range(len(asked) + 1) if asked[:end] in prefixes), default=0)
    nodes = path if partial is None else [*path, partial]
    assert b"".join(node.key for node in nodes)[: found * 8] == blocks_of(asked)[: found * 8]
    assert sum(node.blocks for node in tree.nodes()) == len(prefixes)
    for node in [tree.root, *tree.nodes()]:
        assert node.device_children == len(node.children)
        assert all(child.parent is node and child.start == node.end for child in node.children.values())
