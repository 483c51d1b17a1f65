"""Events as subscribers of the real engines read them: decoded by similar structures and recorded maps."""

from typing import Any

import msgspec
import numpy as np
import pytest

from loadtest.engine.kv_encoding import (
    CacheGroup,
    Change,
    Cleared,
    Content,
    Removed,
    SglangEncoding,
    Stored,
    VllmEncoding,
    cache_groups,
)
from loadtest.engine.profiles import PROFILES
from loadtest.engine.tokens import pack_ids

FULL = CacheGroup("full", "full_attention")
SWA = CacheGroup("sliding_window", "sliding_window", 64)
BLOCK = 4
HASHES = [1, 2**63 + 5, 3, 2**64 - 1, 5, 6]
IDS = list(range(100, 100 + 6 * BLOCK + 3))


class Event(msgspec.Struct, array_like=True, tag=True):
    """A structure of SGLang's disaggregation/kv_events.py, with which its routers decode."""


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(Event):
    pass


def content(**more: Any) -> Content:
    return Content(np.array(HASHES, "<u8").tobytes(), pack_ids(IDS), **more)


def stored(*full: tuple[int, int], swa: Any = (), **more: Any) -> Stored:
    spans = {"full": list(full), "sliding_window": list(swa)}
    return Stored(content(**more), {name: given for name, given in spans.items() if given})


def packed(*hashes: int) -> bytes:
    return np.array(hashes, "<u8").tobytes()


def wire(events: Any) -> Any:
    """There and back through msgpack, as plain values."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(events))


def test_sglang_tells_one_block_at_a_time_with_signed_hashes() -> None:
    events = SglangEncoding(BLOCK).events([stored((0, 2)), stored((3, 4))])

    assert msgspec.convert(wire(events), list[BlockStored | BlockRemoved | AllBlocksCleared]) == [
        BlockStored([1], None, IDS[0:4], BLOCK, None, "GPU"),
        BlockStored([5 - 2**63], 1, IDS[4:8], BLOCK, None, "GPU"),
        BlockStored([-1], 3, IDS[12:16], BLOCK, None, "GPU"),
    ]


def test_sglang_tells_removals_from_the_root_down_and_nothing_of_windows() -> None:
    changes: list[Change] = [
        Removed(packed(5, 2**64 - 1), "full", "GPU"),
        Removed(packed(3), "sliding_window", "GPU"),
        stored(swa=[(0, 1)]),
        Cleared(),
    ]
    events = SglangEncoding(BLOCK).events(changes)

    assert msgspec.convert(wire(events), list[BlockStored | BlockRemoved | AllBlocksCleared]) == [
        BlockRemoved([-1, 5], "GPU"),
        AllBlocksCleared(),
    ]


def test_vllm_tells_a_span_with_unsigned_hashes() -> None:
    """The map that vLLM 0.26 sends for a prompt of one block, but for the numbers."""
    events = VllmEncoding(BLOCK, [FULL]).events([stored((1, 3))])

    assert wire(events) == [
        {
            "type": "BlockStored",
            "block_hashes": [2**63 + 5, 3],
            "parent_block_hash": 1,
            "token_ids": IDS[4:12],
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None, None],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
    ]


def test_a_window_lists_fewer_hashes_than_its_tokens_span() -> None:
    """Seen on vLLM 0.32: the span and its parent are those of the full group, the hashes the kept ones."""
    events = wire(VllmEncoding(BLOCK, [SWA, FULL, SWA]).events([stored((0, 4), swa=[(2, 4)])]))

    assert [event["group_idx"] for event in events] == [0, 1, 2]
    for event in (events[0], events[2]):
        assert event["block_hashes"] == [3, 2**64 - 1]
        assert event["token_ids"] == IDS[:16]
        assert event["parent_block_hash"] is None
        assert event["extra_keys"] == [None, None]
        assert event["kv_cache_spec_kind"] == "sliding_window"
        assert event["kv_cache_spec_sliding_window"] == 64
    assert events[1]["block_hashes"] == HASHES[:4]


def test_a_window_that_keeps_nothing_of_a_span_says_so() -> None:
    _, event = wire(VllmEncoding(BLOCK, [FULL, SWA]).events([stored((0, 1))]))

    assert event["block_hashes"] == []
    assert event["token_ids"] == IDS[:4]
    assert "extra_keys" not in event


def test_a_window_that_is_stored_again_is_told_by_itself() -> None:
    """The full group had blocks 0 to 3 all along; 4 and 5 are new in both."""
    events = wire(VllmEncoding(BLOCK, [FULL, SWA]).events([stored((4, 6), swa=[(2, 6)])]))

    assert [(event["group_idx"], event["block_hashes"], event["parent_block_hash"]) for event in events] == [
        (0, [5, 6], 2**64 - 1),
        (1, [5, 6], 2**64 - 1),
        (1, [3, 2**64 - 1], 2**63 + 5),
    ]
    assert events[2]["token_ids"] == IDS[8:16]


def test_vllm_tells_each_removed_block_of_each_group() -> None:
    changes: list[Change] = [
        Removed(packed(3, 2**63), "sliding_window", "GPU"),
        Removed(packed(7), "full", "CPU"),
    ]
    events = wire(VllmEncoding(BLOCK, [SWA, FULL, SWA]).events(changes))

    assert events[0] == {"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU", "group_idx": 0}
    assert [(e["group_idx"], *e["block_hashes"], e["medium"]) for e in events] == [
        (0, 3, "GPU"),
        (0, 2**63, "GPU"),
        (2, 3, "GPU"),
        (2, 2**63, "GPU"),
        (1, 7, "CPU"),
    ]


def test_vllm_tells_what_else_is_in_a_hash() -> None:
    more = {"salt": "tenant", "lora_name": "adapter", "lora_id": 3}
    first, later = wire(
        VllmEncoding(BLOCK, [FULL]).events([stored((0, 2), **more), stored((2, 3), salt="tenant")])
    )

    assert first["extra_keys"] == [["adapter", "tenant"], ["adapter"]]
    assert (first["lora_id"], first["lora_name"]) == (3, "adapter")
    assert later["extra_keys"] == [None]


@pytest.mark.parametrize("group", [FULL, SWA])
def test_the_older_vllm_encoding_has_the_fields_in_their_places(group: CacheGroup) -> None:
    changes: list[Change] = [
        stored((0, 1), swa=[(0, 1)]),
        stored((1, 2)),
        Removed(packed(9), group.name, "GPU"),
        Cleared(),
    ]
    first, second, removed, cleared = wire(VllmEncoding(BLOCK, [group], legacy=True).events(changes))

    head = ["BlockStored", [1], None, IDS[:4], BLOCK, None, "GPU", None, [None], 0, group.kind]
    assert first == head + ([64] if group is SWA else [])
    assert second[8] == (None if group is SWA else [None])
    assert removed == ["BlockRemoved", [9], "GPU", 0]
    assert cleared == ["AllBlocksCleared"]


def test_the_groups_of_a_model_follow_from_its_layers() -> None:
    """MiMo-V2.5-Pro has 10 full layers and 60 with a window, MiMo-V2-Flash 9 and 39."""
    kinds = {
        name: [group.kind for group in cache_groups(profile.shape)] for name, profile in PROFILES.items()
    }

    assert kinds == {
        "mimo-v2.5-pro": ["full_attention"] + ["sliding_window"] * 6,
        "mimo-v2-flash": ["full_attention"] + ["sliding_window"] * 5,
        "kimi-linear-1t": ["full_attention"] + ["mamba"] * 3,
        "dense-70b": ["full_attention"],
    }
