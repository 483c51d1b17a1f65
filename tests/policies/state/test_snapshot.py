"""Bytes that are no snapshot of a fleet change nothing."""

import msgspec
import pytest

from policies import FleetState, Insert, Op, Placed, WorkerPut
from policies.state.snapshot import PIECE_OPS, Summary
from radix import chain_bytes, finished

PATH = chain_bytes(bytes(3 * 1024), 7)


def fleet_after(*ops: Op) -> FleetState:
    fleet = FleetState()
    for op in ops:
        fleet.apply(op)
    return fleet


def put(worker: str) -> WorkerPut:
    return WorkerPut(worker, 1, "static", f"http://{worker}")


def placed(request_id: str) -> Placed:
    return Placed(request_id, 1_000, "a:1", "one", 100_000, 300, 500, (PATH,))


SOUND = fleet_after(put("a:1"), placed("q")).snapshot()


@pytest.mark.no_cover
def test_a_snapshot_is_requests_in_flight_then_pages_then_what_they_are() -> None:
    """Requests fill two pieces and begin a third; 10,000 runs of two blocks fill more than a page."""
    fleet = fleet_after(put("a:1"))
    for number in range(2 * PIECE_OPS + 1):
        fleet.apply(placed(f"r{number}"))
    for number in range(10_000):
        fleet.apply(Insert("a:1", chain_bytes(bytes(2048), number), 1_000 + number))
    pieces = fleet.snapshot()
    summary = msgspec.msgpack.decode(pieces[-1], type=Summary)
    assert (summary.inflight, summary.pages, len(pieces)) == (3, len(pieces) - 4, len(pieces))
    assert summary.pages > 1
    assert max(map(len, pieces)) < 512 * 1024
    again = fleet_after()
    again.restore(pieces)
    assert again.loads.requests.keys() == fleet.loads.requests.keys()
    assert again.snapshot() == pieces


@pytest.mark.parametrize(
    "data",
    [
        [],
        [b""],
        [b"junk"],
        [b"\x91\x01"],
        [b"\x91" + SOUND[-1][1:2]],
        [b"\x97\xcd\x03\xe7\x90\xc4\x00\x00\x00\x90\xc0"],
        SOUND[:-1],
        SOUND[1:],
        [*SOUND[:-2], SOUND[-1]],
        [SOUND[0], b"\x90", SOUND[-1]],
        [*SOUND[:-1], SOUND[-1].replace(b"\x91\xa3a:1", b"\x92\xa3a:1\xa3b:1")],
    ],
)
def test_an_unreadable_snapshot_is_refused_and_changes_nothing(data: list[bytes]) -> None:
    fleet = fleet_after(put("c:1"), placed("r"))
    before = fleet.snapshot()
    with pytest.raises(ValueError, match="snapshot"):
        fleet.restore(data)
    assert fleet.snapshot() == before


def test_a_snapshot_of_a_writer_that_knew_of_no_flows_is_read() -> None:
    """A field was added at the end; replicas of both kinds share one log during a roll-out."""
    fields = msgspec.msgpack.decode(SOUND[-1])
    fleet = fleet_after()
    fleet.restore([*SOUND[:-1], msgspec.msgpack.encode(fields[:-1])])
    assert fleet.loads.requests.keys() == {"q"}
    fleet.restore([*SOUND[:-1], msgspec.msgpack.encode([*fields, "added later"])])


def test_what_cannot_be_encoded_is_left_out_of_a_snapshot_and_counted() -> None:
    """Such a label no longer gets in; if it did, it would not keep the fleet from its snapshots."""
    fleet = fleet_after(put("a:1"), put("b:1"), placed("q"))
    fleet.worker("b:1").entry.labels["x"] = "\ud800"  # type: ignore[union-attr]
    again = fleet_after()
    again.restore(fleet.snapshot())
    assert fleet.left_out_ops == 1
    assert [worker.worker_id for worker in again.workers()] == ["a:1"]
    assert again.loads.requests.keys() == {"q"}


def test_operations_that_are_wrong_are_skipped_and_counted_and_the_others_are_merged() -> None:
    """A prompt that is no whole hashes, a fit without a price, a kind of a later version, and junk."""
    summary = msgspec.msgpack.decode(SOUND[-1], type=Summary)
    ops = msgspec.msgpack.decode(summary.ops)
    odd = msgspec.msgpack.encode([*ops, [30, "default", 1, "r", 0.1, 0.0, 1e5], [99, "later"], b"junk"])
    pieces = [
        msgspec.msgpack.encode([Placed("bad", 5, "a:1", "one", 1, 1, 1, (b"123",)), placed("good")]),
        *SOUND[1:-1],
        msgspec.msgpack.encode(msgspec.structs.replace(summary, ops=odd)),
    ]
    again = fleet_after()
    steps = again.restore_steps(pieces)
    skipped = finished(steps)
    assert skipped == 4
    assert again.loads.requests.keys() == {"good"}
    assert again.worker("a:1") is not None


@pytest.mark.parametrize(
    "piece",
    [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x92\xa3\xff\xfe\xfd\x01", b"\xc6\xff\xff\xff\xff"],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_no_bytes_of_a_piece_raise_anything_but_a_refusal(piece: bytes, place: int) -> None:
    assert len(SOUND) == 3
    pieces = [*SOUND[:place], piece, *SOUND[place + 1 :]]
    again = fleet_after()
    if place == 0:
        again.restore(pieces)  # one piece of operations that says nothing
    else:
        with pytest.raises(ValueError, match="snapshot"):
            again.restore(pieces)
    assert not again.loads.requests


def test_a_snapshot_of_an_older_version_with_a_plan_of_length_buckets_is_read_without_it() -> None:
    """Tag 25 is retired (decision 0046); the operations beside it count, and nothing is skipped."""
    *others, last = SOUND
    summary = msgspec.msgpack.decode(last)
    ops = msgspec.msgpack.decode(summary[2])
    plan = [25, 13, "one", [65_536, 1_048_576], {"a:1": 0}, {}, "why", 0.5, 0.7]
    summary[2] = msgspec.msgpack.encode([plan, *ops])
    fleet = FleetState()
    assert finished(fleet.restore_steps([*others, msgspec.msgpack.encode(summary)])) == 0
    assert fleet.snapshot() == SOUND
