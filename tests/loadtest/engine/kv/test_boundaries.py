"""Full attention: every block is a boundary."""

from loadtest.engine.kv.boundaries import Boundaries
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.tree import Node


def run(start: int, blocks: int, *, device: bool) -> Node:
    node = Node(None, b"h" * 8 * blocks, start)
    node.device = device
    return node


def test_all_that_matches_can_be_reused_wherever_it_lies() -> None:
    nodes = [run(0, 3, device=True), run(3, 2, device=True), run(5, 4, device=False)]
    rule = Boundaries(64)

    assert rule.usable(nodes, 7) == (5, 7)
    assert rule.usable(nodes[:2], 4) == (4, 4)
    assert rule.usable([], 0) == (0, 0)


def test_it_needs_nothing_beside_full_kv() -> None:
    lease = Lease(b"", 100, 10, 0.0)

    assert Boundaries(64).commitment(lease) == 0
    assert Boundaries(64).load(lease) == 0
