"""How long a client is willing to wait."""

import pytest

from router.errors import ClientError
from router.gateway.deadlines import timeout_s_of


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"30", 30.0),
        (b"2.5", 2.5),
        (b" 30s ", 30.0),
        (b"500ms", 0.5),
        (b"1.5 s", 1.5),
        (b"0.001", 0.001),
        (b"999999999", 999_999_999.0),
    ],
)
def test_a_timeout_is_seconds_with_or_without_a_unit(value: bytes, seconds: float) -> None:
    assert timeout_s_of(value) == seconds


@pytest.mark.parametrize(
    "value",
    [b"", b"0", b"0ms", b"-1", b"soon", b"1m", b"1e3", b"inf", b"nan", b".", b"1,5", b"9" * 400, b"1\xb2"],
)
def test_what_is_no_time_above_0_is_the_clients_mistake(value: bytes) -> None:
    with pytest.raises(ClientError, match="x-request-timeout") as raised:
        timeout_s_of(value)
    assert raised.value.status == 400
    assert raised.value.param == "x-request-timeout"
    assert len(raised.value.message) < 300
