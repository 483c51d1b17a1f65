"""Failures carry their status and a stable code, and look the same to every client."""

import json

import pytest

from router.errors import (
    ClientError,
    NoWorker,
    Overloaded,
    RequestRejected,
    RouterError,
    ShuttingDown,
    StateError,
    StreamBroken,
    UpstreamError,
    WorkerSilent,
    WorkerUnreachable,
    error_body,
)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RouterError("x"), 500, "internal_error"),
        (ClientError("x"), 400, "invalid_request"),
        (ClientError("x", code="model_not_found", status=404), 404, "model_not_found"),
        (Overloaded("x", retry_after_s=1), 503, "overloaded"),
        (NoWorker("x", retry_after_s=1), 503, "no_worker_available"),
        (RequestRejected("x", retry_after_s=1, code="too_many_requests"), 429, "too_many_requests"),
        (ShuttingDown(), 503, "shutting_down"),
        (UpstreamError("x"), 502, "upstream_error"),
        (WorkerUnreachable("x"), 502, "upstream_unreachable"),
        (WorkerSilent("x"), 504, "upstream_timeout"),
        (StreamBroken("x", code="upstream_idle_timeout"), 502, "upstream_idle_timeout"),
        (StateError("x"), 500, "state_unavailable"),
    ],
)
def test_a_failure_says_whose_it_is(error: RouterError, status: int, code: str) -> None:
    assert (error.status, error.code) == (status, code)
    assert json.loads(error_body(error))["error"]["code"] == code


def test_an_error_body_has_the_openai_shape_whatever_the_message() -> None:
    error = ClientError('a "quote"\nand ü', code="invalid_value", param="messages[0].role")
    assert json.loads(error_body(error)) == {
        "error": {
            "message": 'a "quote"\nand ü',
            "type": "invalid_request_error",
            "param": "messages[0].role",
            "code": "invalid_value",
        }
    }


def test_a_code_of_one_failure_is_not_the_code_of_its_class() -> None:
    ClientError("x", code="other")
    assert ClientError("y").code == "invalid_request"
