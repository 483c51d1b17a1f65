"""Outcomes of the queue become the errors that clients are told."""

import pytest

from policies import (
    SLO_UNREACHABLE,
    Displaced,
    Expired,
    QueueFull,
    QueueRefusal,
    Shed,
    Unpublished,
    Unserved,
)
from router.errors import NoWorker, Overloaded
from router.gateway.queue_errors import error_of


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (QueueFull(5, 10, 2.0), 429, "queue_full"),
        (Displaced(2.0), 429, "request_displaced"),
        (Expired(2.0, by_operator=True), 408, "request_expired"),
        (Unserved(ValueError("a mistake of ours")), 500, "internal_error"),
        (Unpublished(), 500, "internal_error"),
        (Shed("no_worker", 2.0), 503, "no_worker_available"),
        (Shed(SLO_UNREACHABLE, 2.0, "ttft of 3.3 s predicted, 2 s promised"), 429, SLO_UNREACHABLE),
    ],
)
def test_every_outcome_has_an_error(refusal: QueueRefusal, status: int, code: str) -> None:
    error = error_of(refusal)
    assert (error.status, error.code) == (status, code)


def test_what_a_request_found_out_itself_is_its_error() -> None:
    found = NoWorker("nobody", retry_after_s=3)
    assert error_of(Unserved(found)) is found


def test_a_full_queue_says_how_full_it_is() -> None:
    error = error_of(QueueFull(5, 10, 2.0))
    assert error.message == "5 requests with 10 uncached tokens are waiting already."
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == 2.0


def test_a_wait_that_expired_says_how_long_it_was() -> None:
    assert error_of(Expired(0.5)).message.startswith("The request's deadline passed after 0.5")
