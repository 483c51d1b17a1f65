"""One choice for real requests and dry runs; how the workers are narrowed is tested where that is done."""

from collections.abc import Sequence

import numpy as np
import pytest
from fakes.gateway import Bench
from fakes.rehearsals import parsed_text

from policies import ALONE, BytesPerToken, Decision, Pairing, Partners, WorkerPut
from router.engines import Description
from router.errors import ClientError, NoWorker
from router.fleet import ServedModel
from router.gateway.choosing import choose, untried
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord


def chosen(bench: Bench, parsed: ParsedRequest, *tried: int) -> str:
    gateway = bench.gateway
    record = RequestRecord(b"", "", gateway.now_s(), 0, gateway=gateway, flow="normal/")
    decision = choose(gateway, gateway.placing.decider, record, parsed, tried)
    assert isinstance(decision, Decision)
    return decision.attempt.worker_id


def test_workers_that_failed_the_request_are_chosen_only_if_no_other_is_left() -> None:
    bench, parsed = Bench(workers=2), parsed_text((1,))
    first = chosen(bench, parsed)
    slot = bench.local(first).worker.slot
    other = chosen(bench, parsed, slot)
    assert other != first
    assert chosen(bench, parsed, slot, bench.local(other).worker.slot) in (first, other)


def test_its_arrival_is_noted_once_and_is_that_of_the_request() -> None:
    """It was received half a second ago, to a microsecond of rounding, and is not younger a second time."""
    bench, parsed = Bench(workers=1), parsed_text((1,))
    gateway = bench.gateway
    record = RequestRecord(b"", "", gateway.now_s() - 0.5, 0, gateway=gateway, flow="normal/")
    choose(gateway, gateway.placing.decider, record, parsed)
    arrived_us = record.arrived_us
    assert arrived_us == pytest.approx(gateway.log.now_us() - 500_000, abs=1)
    bench.time.advance(0.2)
    choose(gateway, gateway.placing.decider, record, parsed)
    assert record.arrived_us == arrived_us


def test_a_prompt_that_one_worker_is_too_small_for_goes_to_the_other() -> None:
    """Also after a look at which both held as much."""
    bench, parsed = Bench(workers=2), parsed_text(tuple(range(1, 13)))
    for small in ("w0:80", "w1:80"):
        for lengths in ({}, {small: 1024}):
            for worker_id in ("w0:80", "w1:80"):
                models = (ServedModel("m", lengths.get(worker_id, 100_000)),)
                bench.gateway.registry.described(bench.local(worker_id), models, Description())
            choice = chosen(bench, parsed)
        assert choice != small


def test_lengths_matter_at_once_where_another_replica_puts_a_worker_into_a_bucket() -> None:
    """At a hundred tokens to the byte 12 KiB are longer than the last bucket."""
    bench, parsed = Bench(workers=1), parsed_text(tuple(range(1, 13)))
    bench.shared.publish(BytesPerToken("m", 1, "r2", 0.01))
    assert chosen(bench, parsed) == "w0:80"
    url, now_us = bench.local("w0:80").worker.url, bench.gateway.log.now_us()
    stamps = {"bucket": (now_us, "r2")}
    bench.shared.publish(WorkerPut("w0:80", now_us, "r2", url, labels={"bucket": "0"}, label_stamps=stamps))
    with pytest.raises(ClientError, match="1048576 tokens"):
        chosen(bench, parsed)


def test_without_a_worker_it_says_why() -> None:
    with pytest.raises(NoWorker):
        chosen(Bench(workers=0), parsed_text((1,), model=None))
    assert chosen(Bench(workers=1), parsed_text((1,), model=None)) == "w0:80"


SLOTS = np.array([1, 2, 3, 4, 5])
"""Plain 1; prefill 2 and 3, whose partners are 7 and 8; prefill 4, whose partner is 9; plain 5."""

PAIRING = Pairing(
    SLOTS,
    np.array([ALONE, 0, 0, 1, ALONE]),
    (Partners("sglang", np.array([7, 8])), Partners("nixl", np.array([9]))),
)


@pytest.mark.parametrize(
    ("tried", "slots", "partners", "others"),
    [
        ((2,), [1, 3, 4, 5], ([7, 8], [9]), True),
        ((7,), [1, 2, 3, 4, 5], ([8], [9]), True),
        ((9,), [1, 2, 3, 5], ([7, 8], [9]), True),
        ((7, 8), [1, 4, 5], ([7, 8], [9]), True),
        ((1, 2, 5, 9), [3], ([7, 8], [9]), True),
        ((1, 5, 7, 8, 9), [1, 2, 3, 4, 5], ([7, 8], [9]), False),
        ((1, 2, 3, 4, 5), [1, 2, 3, 4, 5], ([7, 8], [9]), False),
    ],
)
def test_whoever_failed_a_request_is_left_out_while_anybody_else_is_left(
    tried: Sequence[int], slots: list[int], partners: tuple[list[int], ...], others: bool
) -> None:
    """A prefill worker all of whose partners failed is no option, although it is innocent itself."""
    left, pairing, fresh = untried(SLOTS, PAIRING, tried)
    assert pairing is not None
    assert (left.tolist(), fresh) == (slots, others)
    assert tuple(each.slots.tolist() for each in pairing.partners) == partners
    assert (pairing.slots is SLOTS, pairing.groups is PAIRING.groups) == (True, True)


@pytest.mark.parametrize(
    ("tried", "slots", "others"), [((2,), [1, 3, 4, 5], True), ((1, 2, 3, 4, 5), [1, 2, 3, 4, 5], False)]
)
def test_in_a_fleet_without_pairs_only_workers_count(
    tried: tuple[int], slots: list[int], others: bool
) -> None:
    left, pairing, fresh = untried(SLOTS, None, tried)
    assert (left.tolist(), pairing, fresh) == (slots, None, others)
