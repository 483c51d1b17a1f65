"""Consistent hashing over storage nodes."""

from collections import Counter

from loadtest.engine.kv.ring import HashRing

KEYS = [number.to_bytes(8, "little") for number in range(4000)]


def test_a_node_that_leaves_moves_only_its_own_keys() -> None:
    ring = HashRing(8)

    moved = {key for key in KEYS if ring.owner(key) != ring.owner(key, {3})}

    assert moved == {key for key in KEYS if ring.owner(key) == 3}
    assert len({ring.owner(key, {3}) for key in moved}) == 7, "its arcs go to all others"


def test_the_shares_of_the_nodes_are_even() -> None:
    """128 points a node: the largest share stays within 1 + 3/sqrt(128) = 1.27 of the mean, and noise."""
    shares = Counter(HashRing(8, 128).owner(key) for key in KEYS)

    assert max(shares.values()) < 1.35 * len(KEYS) / 8


def test_a_ring_without_nodes_has_no_owner() -> None:
    assert HashRing(2).owner(b"key", {0, 1}) is None
