"""Requests sent from recordings that are made here."""

import gzip
import json
from pathlib import Path

from loadtest.bench.fleet.script import Ideal, Texts, read_arrivals, read_sessions


def test_sessions_have_clipped_pauses_and_no_overlong_prompts(tmp_path: Path) -> None:
    """A pause of 100 s becomes 60 s, one of 0.1 s becomes 0.5 s; sessions with two requests are left out."""
    entries = [
        {"t": 0.0, "in": 64, "out": 1, "hash_ids": [1], "api_time": 1.0},
        {"t": 1.1, "in": 128, "out": 1, "hash_ids": [1, 2], "api_time": 1.0},
        {"t": 50.0, "in": 140_000, "out": 1, "hash_ids": [1, 2]},
        {"t": 102.1, "in": 192, "out": 9, "hash_ids": [1, 2, 3]},
        {"t": 200.0, "type": "subagent", "requests": []},
    ]
    lines = [{"id": "long", "requests": entries}, {"id": "short", "requests": entries[:2]}]
    path = tmp_path / "sessions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    (session,) = read_sessions(path)

    assert session.name == "long"
    assert [ask.wait_s for ask in session.asks] == [0.5, 0.5, 60.0]
    assert [list(ask.block_ids) for ask in session.asks] == [[1], [1, 2], [1, 2, 3]]


def test_arrivals_count_from_the_start_of_their_window(tmp_path: Path) -> None:
    """A window of 3 s from 3 s on holds the second one of the arrivals at 0, 3 and 6 s."""
    rows = [
        {"timestamp": 3000 * at, "input_length": 600, "output_length": 5, "hash_ids": [0, at + 1]}
        for at in range(3)
    ]
    path = tmp_path / "conversation.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))

    (ask,) = read_arrivals(path, 3.0, 3.0)

    assert (ask.wait_s, list(ask.block_ids)) == (0.0, [0, 2])


def test_equal_ids_are_equal_texts_within_a_scope_only() -> None:
    """Four characters a token, and nothing that JSON would have to escape."""
    texts, others = Texts("a", 64), Texts("b", 64)

    assert texts.prompt([1, 2])[:256] == texts.prompt([1])
    assert len(texts.prompt([1, 2, 3])) == 3 * 256
    assert texts.prompt([1]) != others.prompt([1])
    assert json.loads(b'"' + texts.prompt([7]) + b'"').encode() == texts.prompt([7])


def test_ideal_reuse_ends_at_the_first_new_block() -> None:
    """Prompts of 2 and 3 blocks: only the first block is reused again, as block 9 comes before block 2."""
    ideal, seen = Ideal(), set[int]()
    ideal.count([1, 2], seen)
    ideal.count([1, 9, 2], seen)

    assert ideal.ratio == 1 / 5
