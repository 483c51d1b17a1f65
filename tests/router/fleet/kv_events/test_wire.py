"""Every message form of the engines is understood, and no message raises."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv_encoding import Cleared, Content, Removed, SglangEncoding, Stored, VllmEncoding
from loadtest.engine.kv_encoding import cache_groups as groups_of
from loadtest.engine.shape import ModelShape
from radix.residency import BlocksRemoved, BlocksStored, CacheCleared
from router.fleet.kv_events.wire import Decoder

IDS = list(range(70_000, 70_064))
HASHES = (2**63 + 5, 7)


def encoded(*events: Any, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode((12.5, events, rank))


STORED_MAP = {
    "type": "BlockStored",
    "block_hashes": list(HASHES),
    "parent_block_hash": None,
    "token_ids": IDS,
    "block_size": 32,
    "lora_id": 3,
    "medium": "GPU",
    "lora_name": "poet",
    "extra_keys": [["poet", "salt"], ["poet"]],
    "group_idx": 1,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 64,
}
STORED = BlocksStored(
    list(HASHES), None, IDS, 32, 1, "sliding_window", 64, "GPU", "poet", [["poet", "salt"], ["poet"]]
)


@pytest.mark.parametrize(
    "event",
    [STORED_MAP, ["BlockStored", *list(STORED_MAP.values())[1:]], {**STORED_MAP, "added_later": [1]}],
    ids=["map", "array", "unknown field"],
)
def test_a_store_is_the_same_in_every_form(event: Any) -> None:
    decoder = Decoder()
    for _ in range(2):
        batch = decoder.decode(encoded(event))
        assert batch.events == [STORED]
        assert (batch.sent_unix_s, batch.damaged, batch.clears) == (12.5, False, False)
    assert decoder.counts["stored"] == 2


def test_the_tail_of_an_array_may_be_missing_and_hashes_may_be_bytes_or_negative() -> None:
    first, second = b"\x01" * 32, -5
    batch = Decoder().decode(
        encoded(
            ["BlockStored", [first], second, [1, 2], 2],
            ["BlockRemoved", [second]],
            ["AllBlocksCleared"],
            rank=None,
        )
    )
    assert batch.events == [BlocksStored([first], second, [1, 2], 2), BlocksRemoved([second]), CacheCleared()]
    assert batch.clears
    assert not batch.damaged


def test_both_forms_in_one_batch_are_read_event_by_event() -> None:
    batch = Decoder().decode(encoded(STORED_MAP, ["BlockRemoved", [7], "GPU", 1]))
    assert batch.events == [STORED, BlocksRemoved([7], 1, "GPU")]


def test_what_lies_elsewhere_is_another_medium() -> None:
    (event,) = (
        Decoder()
        .decode(encoded({"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU", "locality": "REMOTE"}))
        .events
    )
    assert event == BlocksRemoved([7], None, "CPU@REMOTE")


@pytest.mark.parametrize("ids", [None, [[1, 2], [2, 3]], "text"], ids=["none", "pairs", "text"])
def test_a_store_without_token_ids_keeps_its_handles(ids: Any) -> None:
    (event,) = Decoder().decode(encoded({**STORED_MAP, "token_ids": ids})).events
    assert isinstance(event, BlocksStored)
    assert (event.hashes, event.token_ids) == (list(HASHES), [])


def test_ids_that_several_groups_tell_are_those_of_each() -> None:
    other = {**STORED_MAP, "token_ids": IDS[::-1]}
    events = Decoder().decode(encoded(STORED_MAP, STORED_MAP, other, STORED_MAP)).events
    assert [event.token_ids for event in events if isinstance(event, BlocksStored)] == [
        *(IDS, IDS, IDS[::-1], IDS)
    ]


def test_an_unknown_kind_is_passed_over_and_harms_nothing() -> None:
    decoder = Decoder()
    batch = decoder.decode(encoded({"type": "BlockMoved", "x": 1}, ["Other", 2], STORED_MAP))
    assert batch.events == [STORED]
    assert not batch.damaged
    assert decoder.counts["unknown"] == 2


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"\xff\xff", b"[]", encoded()[:-3]),
        encoded({"type": "BlockRemoved", "block_hashes": "all"}),
        encoded(["BlockStored", 5]),
        encoded(17),
        msgspec.msgpack.encode({"events": []}),
    ],
)
def test_what_makes_no_sense_is_damage_and_counted(payload: bytes) -> None:
    decoder = Decoder()
    assert decoder.decode(payload).damaged
    assert decoder.counts["damaged"] == 1
    assert decoder.decode(encoded(STORED_MAP)).events == [STORED]


def test_what_emulated_engines_send_is_understood() -> None:
    content = Content(b"".join(n.to_bytes(8, "little") for n in (9, 10, 11)), b"\1\0\0\0" * 48)
    changes = [Stored(content, {"full": [(0, 3)]}), Removed(content.blocks[16:], "full", "GPU"), Cleared()]
    decoder = Decoder()
    sglang = decoder.decode(encoded(*SglangEncoding(16).events(changes))).events
    assert sglang == [
        BlocksStored([9], None, [1] * 16, 16, medium="GPU"),
        BlocksStored([10], 9, [1] * 16, 16, medium="GPU"),
        BlocksStored([11], 10, [1] * 16, 16, medium="GPU"),
        BlocksRemoved([11], None, "GPU"),
        CacheCleared(),
    ]
    shape = ModelShape(full_layers=1, full_layer_bytes=1)
    for legacy in (False, True):
        vllm = decoder.decode(
            encoded(*VllmEncoding(16, groups_of(shape), legacy=legacy).events(changes))
        ).events
        assert vllm[0] == BlocksStored(
            *([9, 10, 11], None, [1] * 48, 16, 0, "full_attention", None, "GPU", None, [None] * 3)
        )
        assert vllm[1:] == [BlocksRemoved([11], 0, "GPU"), CacheCleared()]
    assert not decoder.counts["damaged"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(list(STORED_MAP)), anything, max_size=4), anything, st.booleans())
def test_nothing_raises_whatever_stands_in_a_field(changed: dict[str, Any], beside: Any, row: bool) -> None:
    event: Any = {**STORED_MAP, **changed}
    if row:
        event = list(event.values())
    decoder = Decoder()
    batch = decoder.decode(encoded(event, beside))
    assert batch.damaged or len(batch.events) + decoder.counts["unknown"] == 2


@given(st.binary(max_size=60), st.integers(0, 300), st.binary(max_size=4))
def test_nothing_raises_whatever_bytes_come(noise: bytes, at: int, spliced: bytes) -> None:
    payload = encoded(STORED_MAP, ["BlockRemoved", [7]])
    Decoder().decode(noise)
    Decoder().decode(payload[:at] + spliced + payload[at + 1 :])
