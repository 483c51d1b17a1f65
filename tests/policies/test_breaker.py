"""The circuit opens on failures in a row, and closes after single probes."""

import pytest

from policies import Breaker, Circuit


def breaker() -> Breaker:
    return Breaker(failure_threshold=3, success_threshold=2, open_s=60.0)


def opened(now_s: float = 0.0) -> Breaker:
    circuit = breaker()
    for _ in range(3):
        circuit.on_failure(now_s)
    return circuit


def test_only_failures_in_a_row_open_it() -> None:
    circuit = breaker()
    for _ in range(5):
        circuit.on_failure(0.0)
        circuit.on_failure(0.0)
        circuit.on_success(0.0)
    assert circuit.closed
    assert opened().state is Circuit.OPEN


def test_open_lets_nothing_through_until_its_time_is_up() -> None:
    circuit = opened(now_s=5.0)
    assert not circuit.allows(64.9)
    assert circuit.allows(65.0)


def test_half_open_lets_exactly_one_through() -> None:
    circuit = opened()
    circuit.on_dispatch(60.0)
    assert circuit.state is Circuit.HALF_OPEN
    assert not circuit.allows(60.1)


def test_successful_probes_close_it() -> None:
    circuit = opened()
    circuit.on_dispatch(60.0)
    circuit.on_success(61.0)
    assert (circuit.state, circuit.allows(61.0)) == (Circuit.HALF_OPEN, True)
    circuit.on_dispatch(61.0)
    circuit.on_success(62.0)
    assert circuit.closed
    circuit.on_failure(63.0)
    assert circuit.closed


def test_a_failed_probe_opens_it_again() -> None:
    circuit = opened()
    circuit.on_dispatch(60.0)
    circuit.on_failure(61.0)
    assert (circuit.state, circuit.allows(120.9), circuit.allows(121.0)) == (Circuit.OPEN, False, True)


def test_late_answers_to_old_requests_neither_close_nor_prolong_it() -> None:
    circuit = opened()
    circuit.on_success(1.0)
    circuit.on_failure(30.0)
    assert (circuit.state, circuit.allows(60.0)) == (Circuit.OPEN, True)


def test_answers_to_requests_from_before_do_not_count_as_the_probes() -> None:
    """Two streams of the bad minute end while the probe is out: one well, one not."""
    circuit = opened()
    circuit.on_dispatch(60.0)
    circuit.on_success(61.0, sent_s=0.0)
    circuit.on_failure(62.0, sent_s=0.0)
    assert (circuit.state, circuit.allows(62.0)) == (Circuit.HALF_OPEN, False)
    circuit.on_success(63.0, sent_s=60.0)
    assert circuit.allows(63.0)


def test_a_probe_that_is_never_reported_does_not_block_for_ever() -> None:
    circuit = opened()
    circuit.on_dispatch(60.0)
    assert not circuit.allows(119.0)
    assert circuit.allows(120.0)


@pytest.mark.parametrize("now_s", [0.0, 1e9])
def test_a_closed_circuit_ignores_dispatches(now_s: float) -> None:
    circuit = breaker()
    circuit.on_dispatch(now_s)
    assert circuit.closed
    assert circuit.allows(now_s)
