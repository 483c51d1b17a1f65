"""One attempt at two workers: what it hears beside an answer."""

import pytest
from fakes.gateway import chat
from fakes.handover import PairBench

from router.errors import WorkerSilent
from router.gateway.phase import Phase
from router.handover import Leg
from router.pairs.pair_attempt import PairAttempt


@pytest.mark.parametrize("leg", Leg)
def test_a_pair_is_one_attempt_with_two_more_things_to_hear(leg: Leg) -> None:
    bench = PairBench(1, 1, reliability={"disable_retries": True})
    exchange, client = bench.start(chat(stream=True))
    attempt = exchange._attempt
    assert isinstance(attempt, PairAttempt)
    assert attempt.reservation is attempt.pair is exchange._record.pair
    bench.paired.prefilled()
    bench.paired.shipped()
    assert (attempt.pair.prefilled, attempt.pair.arrived) == (True, True)
    bench.paired.fail_leg(leg, WorkerSilent("silent"))
    assert exchange._record.phase is Phase.DONE
    assert client.status == 504
    bench.check()
