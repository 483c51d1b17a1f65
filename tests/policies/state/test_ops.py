"""Operations survive the wire, and kinds that this version does not know are skipped, not fatal."""

import math
from typing import Any

import msgspec
import pytest
from fakes.words import word

from policies import (
    Audited,
    BytesPerToken,
    CapacityLearned,
    Decoded,
    EarlyRatio,
    EndGone,
    EndReach,
    Expire,
    Finished,
    FirstToken,
    Fitted,
    Forget,
    Insert,
    Left,
    LinkMeasured,
    LoadVector,
    Op,
    OpRefused,
    Placed,
    Reported,
    SettingsChanged,
    Shipped,
    Shipping,
    Trim,
    Waiting,
    WorkerGone,
    WorkerPut,
    decode_ops,
    encode_op,
    encode_ops,
    encode_sound_ops,
)
from policies.state.ops import OP_KINDS, REGISTERS, RETIRED_TAGS

ALL: list[Op] = [
    Placed("r1", 5, "a:1", "one", 200_000, 100, 400, (b"12345678", b""), True, "normal/acme"),
    FirstToken("r1", 6),
    Finished("r1", 7),
    Finished("r2", 7, 6),
    Left("one", 8),
    LoadVector("one", 9, ("a:1",), bytes(36), full=True),
    Waiting("r3", 5, "one", 4, 9, "tiny|0-64K", "a:1", "normal/acme", 100_000, 50, 200),
    WorkerPut("a:1", 9, "one", "http://a:1", "plain", True, 1000, {"worker_class": "h200"}),
    WorkerPut("a:1", 9, "one", "http://a:1", draining=True, drain_us=8, leaving=True),
    Audited(9, "one", "r5", "ops", "10.0.0.9", "PATCH /settings", "queue.size", 200, '{"value": 1}', 17),
    Expire(9, "one", "r6"),
    WorkerGone("a:1", 10, "one"),
    Shipping("r4", 13, "one", "far>", 1_000_000, 14, 20),
    Shipped("r4", 21),
    SettingsChanged("c1", 13, "one", {"queue.size": "5", "roles.mode": None}, "ann", "why", "c0"),
    Insert("a:1", b"12345678", 13, False),
    Trim("a:1", b"12345678", 14),
    Forget("a:1", 15),
    EndGone("a:1", b"12345678", 16, 2),
    EndReach("a:1", b"12345678", 16, 2),
    *(word(kind, 0, 17, "one", 3) for kind in REGISTERS),
]


def test_every_operation_survives_the_wire() -> None:
    assert {type(op) for op in ALL} == {*OP_KINDS}
    assert decode_ops(encode_ops(ALL)) == Decoded(ALL)


def test_operations_encoded_one_by_one_are_the_items_of_the_array() -> None:
    """More than 15 of them: the head of a msgpack array is three bytes."""
    assert encode_ops(ALL)[3:] == b"".join(map(encode_op, ALL))


def test_an_unknown_tag_is_skipped_and_counted() -> None:
    """A newer replica writes a kind 99; its other operations still count."""
    raw = msgspec.msgpack.decode(encode_ops(ALL[:2]))
    data = msgspec.msgpack.encode([raw[0], [99, "new"], raw[1]])
    assert decode_ops(data) == Decoded(ALL[:2], unknown=1)


OLD_PLAN = [25, 13, "one", [1_000, 2_000], {"a:80": 0}, {"b:80": [0, 1]}, "why", 0.5, 0.7]
"""Operation of automatic length buckets, until decision 0046."""


def test_a_retired_tag_is_passed_over_and_not_counted() -> None:
    """An older replica still writes it, or it lies in the log: that needs no report."""
    raw = msgspec.msgpack.decode(encode_ops(ALL[:2]))
    data = msgspec.msgpack.encode([raw[0], OLD_PLAN, raw[1]])
    assert decode_ops(data) == Decoded(ALL[:2])


def test_no_kind_has_a_retired_tag() -> None:
    assert not RETIRED_TAGS & {kind.__struct_config__.tag for kind in OP_KINDS}


def test_fields_added_at_the_end_by_a_newer_version_are_ignored() -> None:
    raw = msgspec.msgpack.decode(encode_ops([ALL[1]]))
    assert decode_ops(msgspec.msgpack.encode([[*raw[0], "added later"]])) == Decoded([ALL[1]])


BEYOND: list[Any] = [
    Placed("r", 5, "a:1", "one", 5, 5, 10**17),
    Placed("r", 5, "a:1", "one", 5, 2**64, 5),
    Placed("r", 5, "a:1", "one", -1, 5, 5),
    Placed("r", 2**60, "a:1", "one", 5, 5, 5),
    Placed("r", 5, "a:1", "one", 5, 5, 5, flow="x" * 257),
    WorkerPut("a:1", 9, "one", "http://a:1", capacity_tokens=10**30),
    WorkerPut("a:1", 9, "one", "http://a:1", labels={"x": "\ud800"}),
    WorkerPut("a:1", 9, "one", "http://a:1", labels={f"l{number}": "" for number in range(65)}),
    WorkerPut("a:1", 9, "one", "http://" + "a" * 2048),
    Fitted("default", 11, "one", math.inf, 1e-4, 1e5),
    Fitted("default", 11, "one", 0.01, math.nan, 1e5),
    Fitted("default", 11, "one", 0.01, 1e-4, 0.0),
    BytesPerToken("m", 12, "one", 0.0),
    BytesPerToken("m" * 300, 12, "one", 4.0),
    EarlyRatio("default", 12, "one", 2.0),
    CapacityLearned("a:1", 12, "one", -1),
    CapacityLearned("a:1", -1, "one", 1),
    CapacityLearned("a:1", 12, "one", 2**60),
    Reported("a:1", 12, "one", kv_tokens=2**40),
    LinkMeasured("far>", 22, "one", math.inf),
    Left("one", -1),
]


@pytest.mark.parametrize("op", BEYOND, ids=lambda op: type(op).__name__)
def test_a_value_beyond_its_bounds_is_neither_encoded_nor_decoded(op: Op) -> None:
    """A hostile or broken replica would encode such values raw."""
    with pytest.raises(OpRefused):
        encode_op(op)
    try:
        raw = msgspec.msgpack.encode([op])
    except (OverflowError, UnicodeEncodeError):  # no replica can write it at all
        return
    assert decode_ops(raw) == Decoded([], invalid=1)
    assert decode_ops(b"\x92" + raw[1:] + encode_op(ALL[0])) == Decoded(ALL[:1], invalid=1)


def test_operations_that_cannot_be_encoded_are_left_out_and_counted() -> None:
    data, left_out = encode_sound_ops([ALL[0], BEYOND[6], ALL[1]])
    assert (decode_ops(data), left_out) == (Decoded(ALL[:2]), 1)
    assert encode_sound_ops(ALL) == (encode_ops(ALL), 0)


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("91930ca2fffe01"),  # Finished, whose request id is no UTF-8
        b"\x91" * 100_000 + b"\xc0",  # too deep
        b"\xdd\xff\xff\xff\xff",  # four billion operations, none of which is there
        b"\xdd\x00\x01\x00\x01" + b"\xc0" * 65_537,
        bytes((1 << 26) + 1),
    ],
)
def test_no_bytes_raise(data: bytes) -> None:
    ops, unknown, invalid = decode_ops(data)
    assert (ops, unknown, invalid > 0) == ([], 0, True)


@pytest.mark.parametrize("data", [b"", b"junk", msgspec.msgpack.encode({"not": "a list"})])
def test_an_entry_that_is_no_list_of_operations_counts_as_one(data: bytes) -> None:
    assert decode_ops(data) == Decoded([], invalid=1)
