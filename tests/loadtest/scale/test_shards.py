"""Tests of `loadtest.scale.shards`."""

import random
from collections import Counter

from loadtest.scale.shards import Shards, Split
from radix import HASH_BYTES

PATHS = [random.Random(number).randbytes(10 * HASH_BYTES) for number in range(1000)]
HEAD = PATHS[0][: 4 * HASH_BYTES]


def test_owners_are_spread_evenly() -> None:
    """Two owners of each of 1,000 shards are 200 a replica; 60 is four standard deviations."""
    shards = Shards(10, 2)
    owned = Counter(owner for path in PATHS for owner in shards.owners_of(shards.shards_of(path)[-1]))

    assert len(owned) == 10
    assert all(abs(count - 200) < 60 for count in owned.values())


def test_a_death_moves_the_shards_of_the_dead_only() -> None:
    shards = Shards(10, 2)
    keys = [shards.shards_of(path)[-1] for path in PATHS]
    before = {key: shards.owners_of(key) for key in keys}
    shards.bury(3)

    for key in keys:
        after = shards.owners_of(key)
        assert 3 not in after
        assert after[: 2 - (3 in before[key])] == tuple(owner for owner in before[key] if owner != 3)


def test_a_split_spreads_what_shares_a_head() -> None:
    """Prompts that end within the head stay with it."""
    shards = Shards(100, 2)
    (head,) = shards.shards_of(HEAD)
    shards.splits[head] = Split(4, 0.0)
    found = [shards.shards_of(HEAD + path) for path in PATHS]

    assert shards.shards_of(HEAD) == [head]
    assert all(chain[0] == head and len(chain) == 2 for chain in found)
    assert len({chain[1] for chain in found}) > 300
