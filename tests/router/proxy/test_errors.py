"""Errors of ours as answers."""

import json

import pytest

from router.errors import ClientError, RequestRejected
from router.proxy import error_answer, retry_after


@pytest.mark.parametrize(
    ("seconds", "value"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.1, b"2"), (30.0, b"30")]
)
def test_retry_after_is_whole_seconds_and_never_at_once(seconds: float, value: bytes) -> None:
    assert retry_after(seconds) == value


def test_who_may_come_back_is_told_when() -> None:
    lines, body = error_answer(RequestRejected("full", retry_after_s=2.5))
    assert lines == b"content-type: application/json\r\nretry-after: 3\r\n"
    assert json.loads(body)["error"]["message"] == "full"

    lines, _ = error_answer(ClientError("no", code="nonsense"))
    assert lines == b"content-type: application/json\r\n"
