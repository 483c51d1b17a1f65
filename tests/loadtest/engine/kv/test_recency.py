"""The oldest node."""

from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv.recency import Recency
from loadtest.engine.kv.tree import Node


def current(used: int, node: Node) -> bool:
    return node.used == used


def used_at(order: Recency, used: int, start: int = 0) -> Node:
    node = Node(None, b"", start)
    node.used = used
    order.add(used, node)
    return node


def test_the_node_used_longest_ago_comes_first_and_the_shallower_of_two() -> None:
    order = Recency(current)
    late, deep, shallow = used_at(order, 2), used_at(order, 1, start=5), used_at(order, 1, start=3)

    assert order.peek() is shallow
    assert [order.pop(), order.pop(), order.pop()] == [shallow, deep, late]
    assert order.peek() is None
    assert order.take() is None


def test_a_node_that_was_used_again_or_cut_counts_with_its_newest_entry() -> None:
    order = Recency(current)
    again, cut, other = used_at(order, 1), used_at(order, 2), used_at(order, 3)
    again.used = 4
    order.add(4, again)
    cut.start = 2
    order.add(2, cut)

    assert [order.pop(), order.pop(), order.pop()] == [cut, other, again]
    assert order.take() is None


def test_a_node_that_may_not_be_evicted_any_more_is_passed_over() -> None:
    order = Recency(current)
    locked, other = used_at(order, 1), used_at(order, 2)
    locked.used = -1

    assert order.peek() is other


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=300))
def test_stale_entries_neither_pile_up_nor_change_the_order(uses: list[tuple[int, int]]) -> None:
    order = Recency(current)
    nodes = [Node(None, b"", at) for at in range(10)]
    for at, used in uses:
        nodes[at].used = used + 1
        order.add(used + 1, nodes[at])

    assert len(order._entries) <= 2 * 10 + 64
    popped = []
    while (node := order.take()) is not None:
        popped.append(node)
        node.used = 0
    touched = {at for at, _ in uses}
    last = {at: next(used for index, used in reversed(uses) if index == at) for at in touched}
    assert [node.start for node in popped] == sorted(touched, key=lambda at: (last[at], at))
