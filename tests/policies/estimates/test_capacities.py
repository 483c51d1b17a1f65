"""Learned capacities, against caches that evict the least recently used blocks."""

from collections import OrderedDict
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.estimates.capacities import FALL_MAX, RISE, SHORTFALL_MIN, Reuse, learned_blocks
from radix import HASH_BYTES, PrefixTree


class Cache:
    """An engine's cache: the tails of the prompts that were not used for longest go first."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def serve(self, path: bytes) -> int:
        """Use a prompt, and return how many of its leading blocks were there."""
        stops = range(HASH_BYTES, len(path) + 1, HASH_BYTES)
        cached = 0
        for stop in stops:
            if path[:stop] not in self._held:
                break
            cached += 1
        for stop in reversed(stops):
            self._held[path[:stop]] = None
            self._held.move_to_end(path[:stop])
        while len(self._held) > self.blocks:
            self._held.popitem(last=False)
        return cached


def prompts(random: Random, sessions: int, longest: int) -> list[bytes]:
    """Prompts that share nothing, of which some are asked for more often than others."""
    return [
        b"".join((1000 * session + block).to_bytes(HASH_BYTES, "little") for block in range(blocks))
        for session in range(1, sessions + 1)
        for blocks in [random.randint(3, longest)]
    ]


def learn(cache: Cache, random: Random, known: float, *, sessions: int, longest: int) -> float:
    """Let a tree learn the size of a cache from 2,000 answers, as `policies.Feedback` does."""
    tree, asked = PrefixTree(), prompts(random, sessions, longest)
    for at_us in range(1, 2_001):
        path = asked[min(int(random.expovariate(3.0 / sessions)), sessions - 1)]
        tree.set_capacity(0, None if known == inf else int(known))
        predicted = tree.match(path).matched.tolist()[0] if tree.held_blocks(0) else 0
        used_us = tree.used_us(0, path, predicted) if predicted else 0
        prompt, cached = len(path) // HASH_BYTES, cache.serve(path)
        tree.insert(0, path, at_us, end=True)
        distance = tree.blocks_since(0, used_us) - (prompt - predicted) if predicted else 0
        before = known
        known = learned_blocks(known, Reuse(prompt, predicted, cached, distance))
        assert known >= min(before, prompt)
        if cached + SHORTFALL_MIN < predicted:
            tree.trim(0, path[: HASH_BYTES * (cached + 1)], at_us)
    return known


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (1, 2, 3))])
@pytest.mark.parametrize("blocks", [100, 300])
@pytest.mark.parametrize("known", [inf, 1_000.0, 60.0])
def test_what_is_known_comes_to_what_a_cache_keeps(seed: int, blocks: int, known: float) -> None:
    random = Random(seed)
    learned = learn(Cache(blocks), random, known, sessions=80, longest=20)
    assert learned == pytest.approx(blocks, rel=0.25)


def test_a_cache_that_loses_nothing_stays_unknown() -> None:
    assert learn(Cache(10_000), Random(1), inf, sessions=30, longest=20) == inf


reuses = st.builds(Reuse, *(st.integers(0, 400),) * 4).filter(lambda reuse: reuse.predicted <= reuse.prompt)


@given(st.floats(1.0, 1e6), reuses)
def test_one_answer_moves_it_by_a_step_and_never_below_the_prompt(known: float, reuse: Reuse) -> None:
    learned = learned_blocks(known, reuse)
    assert known * (1 - FALL_MAX) <= learned <= known * (1 + RISE)
    assert learned >= min(known, reuse.prompt)
    if not reuse.is_short and not reuse.is_more:
        assert learned == known


@given(reuses)
def test_of_an_unknown_cache_the_first_loss_says_the_size(reuse: Reuse) -> None:
    learned = learned_blocks(inf, reuse)
    assert learned == inf or (reuse.is_short and reuse.prompt <= learned <= reuse.distance)


def test_the_steps_are_those_that_are_documented() -> None:
    """A loss at a distance of 90, 10 of them gone: half of the way from 100 to 80; from afar, a step."""
    short = Reuse(prompt=20, predicted=20, cached=10, distance=90)
    assert learned_blocks(100.0, short) == 90.0
    assert learned_blocks(1_000.0, short) == 1_000.0 * (1 - FALL_MAX)
    assert learned_blocks(80.0, short) == 80.0
    assert learned_blocks(inf, short) == 80.0
    assert learned_blocks(inf, short._replace(cached=0)) == 80.0
    assert learned_blocks(100.0, Reuse(20, 0, 20, 0)) == 100.0 * (1 + RISE)
    assert learned_blocks(inf, Reuse(20, 0, 20, 0)) == inf
