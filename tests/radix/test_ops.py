"""Operations as values and as bytes."""

import msgspec
import pytest

from radix import AttentionProfile, EndGone, Forget, Insert, PrefixTree, TreeOp, Trim, apply

WINDOW = AttentionProfile("sliding_window", window_tokens=128)
A, AB = b"a" * 8, b"a" * 8 + b"b" * 8


def test_operations_do_to_the_tree_what_they_say() -> None:
    tree = PrefixTree()

    apply(tree, Insert("w", AB, 5), 0)
    assert tree.match(AB).matched.tolist() == [2]
    apply(tree, Trim("w", AB, 6), 0)
    assert tree.match(AB).matched.tolist() == [1]
    apply(tree, Insert("w", AB, 7, ends=2), 0)
    apply(tree, EndGone("w", AB, 8), 0)
    assert tree.match(AB, WINDOW).matched.tolist() == [2]
    assert tree.match(AB, WINDOW).safe.tolist() == [1]
    apply(tree, Forget("w", 8), 0)
    assert tree.match(AB).matched.tolist() == [0]


@pytest.mark.parametrize(
    "op", [Insert("w", AB, 5, end=False), Trim("w", A, 6), Forget("w", 7), EndGone("w", A, 8, 2)]
)
def test_operations_survive_the_wire(op: TreeOp) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(op), type=TreeOp) == op


def test_an_insert_without_its_newest_field_is_still_understood() -> None:
    """Fields are only added at the end, with a default."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([1, "w", A, 5]), type=TreeOp) == Insert("w", A, 5)
