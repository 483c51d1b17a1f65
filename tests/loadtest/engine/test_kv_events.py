"""A subscriber that believes every event must know the contents of the cache."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv_encoding import CacheGroup, Content, SglangEncoding, VllmEncoding
from loadtest.engine.kv_events import KvEvents
from loadtest.engine.tokens import pack_ids

GROUPS = [CacheGroup("full", "full_attention"), CacheGroup("sliding_window", "sliding_window", 8)]
BLOCK = 2


class Loop:
    """Keeps the calls for the end of a turn."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.batches: list[Any] = []

    def turn(self) -> None:
        while self.due:
            self.due.pop()()

    def publish(self, batch: bytes) -> None:
        self.batches.append(msgspec.msgpack.decode(batch))


def hash_of(sequence: int, place: int) -> int:
    """Beyond 63 bits for odd sequences."""
    return (sequence % 2 << 63) + sequence * 1000 + place


@dataclass
class FakeLease:
    sequence: int

    @property
    def blocks(self) -> int:
        return self.sequence


LEASES: Any = [FakeLease(sequence) for sequence in range(4)]


def content(sequence: Any) -> Content:
    hashes = np.array([hash_of(sequence, place) for place in range(8)], "<u8")
    return Content(hashes.tobytes(), pack_ids([sequence * 100 + at for at in range(8 * BLOCK)]))


def listening(encoding: Any, rank: int = 0) -> tuple[KvEvents, Loop]:
    loop = Loop()
    events = KvEvents(encoding, content, loop.publish, loop.due.append, rank=rank, now_unix_s=lambda: 1.5)
    return events, loop


def test_a_turn_of_the_loop_is_one_batch() -> None:
    events, loop = listening(VllmEncoding(BLOCK, GROUPS), rank=3)
    events.removed(np.array([7], "<u8").tobytes(), "full", "GPU")
    events.stored(LEASES[1], 0, 3, "full")
    events.stored(LEASES[1], 1, 3, "sliding_window")
    events.stored(LEASES[2], 0, 1, "full")
    assert len(loop.due) == 1
    loop.turn()
    events.stored(LEASES[2], 1, 2, "full")
    loop.turn()

    (at_s, first, rank), (_, second, _) = loop.batches
    assert (at_s, rank) == (1.5, 3)
    assert [(event["type"][5:], event["group_idx"], len(event["block_hashes"])) for event in first] == [
        ("Removed", 0, 1),
        ("Stored", 0, 3),
        ("Stored", 1, 2),
        ("Stored", 0, 1),
        ("Stored", 1, 0),
    ]
    assert [event["parent_block_hash"] for event in second] == [hash_of(2, 0)] * 2


def test_a_flush_is_told_with_what_happens_next() -> None:
    events, loop = listening(SglangEncoding(BLOCK))
    events.removed(np.array([7], "<u8").tobytes(), "full", "GPU")
    events.cleared()
    events.cleared()
    loop.turn()
    assert loop.batches == []
    events.stored(LEASES[1], 0, 1, "full")
    loop.turn()

    assert [event[0] for event in loop.batches[0][1]] == ["AllBlocksCleared", "BlockStored"]


def test_what_an_engine_does_not_tell_is_no_batch() -> None:
    events, loop = listening(SglangEncoding(BLOCK))
    events.removed(np.array([7], "<u8").tobytes(), "sliding_window", "GPU")
    loop.turn()

    assert loop.batches == []


ranges = st.tuples(st.integers(0, 7), st.integers(1, 8)).filter(lambda pair: pair[0] < pair[1])
changes = st.one_of(
    st.tuples(st.just("stored"), st.integers(0, 3), ranges, st.sampled_from(["full", "sliding_window"])),
    st.tuples(st.just("removed"), st.integers(0, 3), ranges, st.sampled_from(["full", "sliding_window"])),
    st.tuples(st.just("cleared")),
    st.tuples(st.just("turn")),
)


@pytest.mark.parametrize("dialect", ["sglang", "vllm", "legacy"])
@given(script=st.lists(changes, max_size=30))
def test_an_index_made_from_events_knows_what_is_held(dialect: str, script: Any) -> None:
    encoding = (
        SglangEncoding(BLOCK)
        if dialect == "sglang"
        else VllmEncoding(BLOCK, GROUPS, legacy=dialect == "legacy")
    )
    events, loop = listening(encoding)
    held: set[tuple[str, int]] = set()
    for change in script:
        match change:
            case ("stored", sequence, (start, end), group):
                events.stored(LEASES[sequence], start, end, group)
                held |= {(group, hash_of(sequence, place)) for place in range(start, end)}
            case ("removed", sequence, (start, end), group):
                hashes = [hash_of(sequence, place) for place in reversed(range(start, end))]
                events.removed(np.array(hashes, "<u8").tobytes(), group, "GPU")
                held -= {(group, block_hash) for block_hash in hashes}
            case ("cleared",):
                events.cleared()
                held.clear()
            case _:
                loop.turn()
    events.removed(np.array([hash_of(9, 9)], "<u8").tobytes(), "full", "GPU")
    loop.turn()

    index: set[tuple[str, int]] = set()
    for _, batch, _ in loop.batches:
        for event in batch:
            apply(event, index)
    if dialect == "sglang":
        held = {(group, block_hash) for group, block_hash in held if group == "full"}
    assert index == held


def apply(event: Any, index: set[tuple[str, int]]) -> None:
    """Apply an event as a router does, and check every position that it can know."""
    if isinstance(event, dict):
        fields = event
    else:
        names = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"]
        names += ["lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"]
        if event[0] == "BlockRemoved":
            names = ["block_hashes", "medium", "group_idx"]
        fields = {"type": event[0]} | dict(zip(names, event[1:], strict=False))
    if fields["type"] == "AllBlocksCleared":
        index.clear()
        return
    group = GROUPS[fields.get("group_idx", 0)].name
    hashes = [block_hash % 2**64 for block_hash in fields["block_hashes"]]
    keys = {(group, block_hash) for block_hash in hashes}
    if fields["type"] == "BlockRemoved":
        index -= keys
        return
    index |= keys
    sequence, first = divmod(fields["token_ids"][0], 100)
    blocks = len(fields["token_ids"]) // BLOCK
    expected = [hash_of(sequence, first // BLOCK + at) for at in range(blocks)]
    assert fields["parent_block_hash"] == (
        None
        if first == 0
        else (hash_of(sequence, first // BLOCK - 1) + 2**63) % 2**64 - 2**63
        if isinstance(event, list) and len(event) == 7
        else hash_of(sequence, first // BLOCK - 1)
    )
    if group == "full":
        assert hashes == expected
    else:
        assert set(hashes) <= set(expected)
