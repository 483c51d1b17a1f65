"""One choice for real requests and dry runs; how the workers are narrowed is tested where that is done."""

import pytest
from fakes.gateway import Bench
from fakes.rehearsals import parsed_text

from policies import Decision
from router.errors import NoWorker
from router.gateway.choosing import choose
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord


def chosen(bench: Bench, parsed: ParsedRequest, *tried: int) -> str:
    gateway = bench.gateway
    record = RequestRecord(gateway, b"", "", gateway.now_s(), 0, flow="normal/")
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
    record = RequestRecord(gateway, b"", "", gateway.now_s() - 0.5, 0, flow="normal/")
    choose(gateway, gateway.placing.decider, record, parsed)
    arrived_us = record.arrived_us
    assert arrived_us == pytest.approx(gateway.log.now_us() - 500_000, abs=1)
    bench.time.advance(0.2)
    choose(gateway, gateway.placing.decider, record, parsed)
    assert record.arrived_us == arrived_us


def test_without_a_worker_it_says_why() -> None:
    with pytest.raises(NoWorker):
        chosen(Bench(workers=0), parsed_text((1,), model=None))
    assert chosen(Bench(workers=1), parsed_text((1,), model=None)) == "w0:80"
