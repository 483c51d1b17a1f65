"""The engine of the benchmark of KV events reports a full cache."""

from random import Random

import pytest

from loadtest.bench import event_engine as bench
from radix.residency import BlocksRemoved, Residency


@pytest.mark.parametrize("mix", bench.MIXES, ids=lambda mix: mix.name)
def test_the_engine_stays_full_and_says_what_it_holds(mix: bench.Mix) -> None:
    engine = bench.Engine(mix, 1200, Random(1))
    residency = Residency(mix.tree_tokens, lambda lora, salt: 1)
    residency.apply(0, [*engine.fill(), *engine.events(2000)])
    residency.changes("w", 1)

    assert 500 < engine.held <= 1200
    assert residency.blocks == engine.held
    assert residency.readable
    assert residency.ends_known == (mix.windows > 0)


def test_most_of_what_a_full_engine_says_is_removals_of_one_block() -> None:
    events = bench.Engine(bench.MIXES[0], 1200, Random(1)).events(3000)

    removals = [event for event in events if isinstance(event, BlocksRemoved)]
    assert len(removals) > len(events) / 2
    assert all(len(event.hashes) == 1 for event in removals)
