"""Operations survive the wire, and what this version does not know is skipped, not fatal."""

import msgspec
import pytest

from policies import (
    Audited,
    BucketPlan,
    BytesPerToken,
    Circuit,
    CircuitSet,
    DecodeFitted,
    EndGone,
    Expire,
    Finished,
    FirstToken,
    Fitted,
    Forget,
    Insert,
    Left,
    LinkMeasured,
    OffloadPlan,
    Op,
    Placed,
    SettingsChanged,
    Shipped,
    Shipping,
    Started,
    Tracked,
    Trim,
    Waiting,
    WorkerGone,
    WorkerPut,
    decode_ops,
    encode_op,
    encode_ops,
)

ALL: list[Op] = [
    Placed("r1", 5, "a:1", "one", 200_000, 100, 400, (b"12345678", b""), True, "normal/acme"),
    FirstToken("r1", 6),
    Finished("r1", 7),
    Finished("r2", 7, 6),
    Left("one", 8),
    Waiting("r3", 5, "one", 4, 9, "tiny|0-64K", "a:1", "normal/acme", 100_000, 50, 200),
    WorkerPut("a:1", 9, "one", "http://a:1", "plain", True, 1000, {"worker_class": "h200"}),
    WorkerPut("a:1", 9, "one", "http://a:1", draining=True, drain_us=8, leaving=True),
    Audited(9, "one", "r5", "ops", "10.0.0.9", "PATCH /settings", "queue.size", 200, '{"value": 1}', 17),
    Expire(9, "one", "r6"),
    Tracked("a:1", 9, "one", True),
    WorkerGone("a:1", 10, "one"),
    CircuitSet("a:1", 10, "one", Circuit.HALF_OPEN, 20, 2),
    Started("a:1", 10, "one", 1_700_000_000_250, True),
    Fitted("default", 11, "one", 0.01, 1e-4, 140_000.0),
    BytesPerToken("tiny", 12, "one", 3.5),
    DecodeFitted("default", 12, "one", 0.01, 0.0005, 20.0, 3.0),
    BucketPlan(13, "one", (1_000, 2_000), {"a:80": 0, "b:80": 1}, {"b:80": (0, 1)}, "why", 0.5, 0.7),
    Shipping("r4", 13, "one", "far>", 1_000_000, 14, 20),
    Shipped("r4", 21),
    LinkMeasured("far>", 22, "one", 1.5e9, 0.02, 0.25),
    OffloadPlan(13, "one", 19_400, 3, 5, {"a:1": "decode"}, 0.1, "why", 3.2, 0.5, 1e9, 9, {}, {"b:1": 7}),
    SettingsChanged("c1", 13, "one", {"queue.size": "5", "roles.mode": None}, "ann", "why", "c0"),
    Insert("a:1", b"12345678", 13, False),
    Trim("a:1", b"12345678", 14),
    Forget("a:1", 15),
    EndGone("a:1", b"12345678", 16, 2),
]


def test_every_operation_survives_the_wire() -> None:
    assert decode_ops(encode_ops(ALL)) == (ALL, 0)


def test_operations_encoded_one_by_one_are_the_items_of_the_array() -> None:
    """More than 15 of them: the head of a msgpack array is three bytes."""
    assert encode_ops(ALL)[3:] == b"".join(map(encode_op, ALL))


def test_an_unknown_tag_is_skipped_and_counted() -> None:
    """A newer replica writes a kind 99; what it wrote beside it still counts."""
    raw = msgspec.msgpack.decode(encode_ops(ALL[:2]))
    data = msgspec.msgpack.encode([raw[0], [99, "new"], raw[1]])
    assert decode_ops(data) == (ALL[:2], 1)


def test_fields_added_at_the_end_by_a_newer_version_are_ignored() -> None:
    raw = msgspec.msgpack.decode(encode_ops([ALL[1]]))
    assert decode_ops(msgspec.msgpack.encode([[*raw[0], "added later"]])) == ([ALL[1]], 0)


@pytest.mark.parametrize("data", [b"", b"junk", msgspec.msgpack.encode({"not": "a list"})])
def test_an_entry_that_is_no_list_of_operations_counts_as_one(data: bytes) -> None:
    assert decode_ops(data) == ([], 1)
