"""Tests of `loadtest.scale.traffic`."""

import itertools
import json
from pathlib import Path

from loadtest.scale.traffic import TURNS_MAX, agents, conversations
from radix import HASH_BYTES


def test_agents_grow_and_share_the_beginnings_of_their_products() -> None:
    drawn = list(itertools.islice(agents(10.0), 200))
    starts = [at_s for at_s, _ in drawn]
    firsts = {conversation.path[:HASH_BYTES] for _, conversation in drawn}

    assert starts == sorted(starts)
    assert 10 < len(firsts) < 30
    for _, conversation in drawn:
        lengths = [turn.blocks for turn in conversation.turns]
        assert lengths == sorted(lengths)
        assert len(lengths) <= TURNS_MAX
        assert len(conversation.path) == lengths[-1] * HASH_BYTES


def test_a_seed_draws_the_same_agents_again() -> None:
    assert list(itertools.islice(agents(5.0, seed=3), 20)) == list(itertools.islice(agents(5.0, seed=3), 20))


def test_rows_of_a_trace_share_what_their_ids_share(tmp_path: Path) -> None:
    """Two ids of 512 tokens are four blocks; the second row has the first id in common."""
    rows = [(0, 1024, [0, 1]), (6000, 700, [0, 2]), (9000, 100, [3])]
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": tokens, "output_length": 5, "hash_ids": ids}) + "\n"
            for at, tokens, ids in rows
        )
    )
    (first_s, first), (second_s, second) = conversations(path, speed=10.0)

    assert 0.0 <= first_s <= 0.3 <= 0.6 <= second_s <= 0.9
    assert (len(first.path), len(second.path)) == (4 * HASH_BYTES, 2 * HASH_BYTES)
    assert second.path == first.path[: 2 * HASH_BYTES]
