"""The lazy heap: stale entries never change the order of eviction."""

from radix.eviction import HIGHEST, EvictionQueue, blocks_at_or_below
from radix.node import Node


def node(*hashes: int, start: int = 0) -> Node:
    return Node(None, b"".join(value.to_bytes(8, "little") for value in hashes), start, 1)


def test_the_oldest_goes_first_then_the_deepest_then_the_lowest_hash() -> None:
    nodes = [node(1), node(2, start=4), node(3, start=4), node(4)]
    used = dict(zip(nodes, (5, 5, 5, 4), strict=True))
    queue = EvictionQueue(lambda node, _: used.get(node))
    queue.rebuild((node, 0, used_us) for node, used_us in used.items())

    order = []
    while (lowest := queue.lowest()) is not None:
        order.append(lowest[2])
        del used[lowest[2]]

    assert order == [nodes[3], nodes[1], nodes[2], nodes[0]]
    assert len(queue) == 0


def test_an_entry_that_is_too_low_is_corrected_and_doubles_go() -> None:
    one, two = node(1), node(2)
    used = {one: 1, two: 5}
    queue = EvictionQueue(lambda node, _: used.get(node))
    for _ in range(3):
        queue.push(one, 0, 1)
    queue.push(two, 0, 5)
    used[one] = 9

    assert queue.lowest() == ((5, -1, 2), 0, two)
    assert queue.runner_up() == (9, -1, 1)
    del used[two]
    assert queue.lowest() == ((9, -1, 1), 0, one)
    assert queue.runner_up() == HIGHEST
    assert len(queue) == 1


def test_a_run_goes_block_by_block_where_another_run_of_the_same_time_is_as_deep() -> None:
    """Five blocks, down to depth 5, used at 3."""
    run = node(1, 2, 3, 4, 5)
    key = run.key(3)

    assert blocks_at_or_below(run, key, (4, -1, 0)) == 5
    assert blocks_at_or_below(run, key, (3, -2, 0)) == 3
    assert blocks_at_or_below(run, key, (3, -5, 9)) == 1
    assert blocks_at_or_below(run, key, (3, 0, 0)) == 5
