"""Requests that need no body to be placed. On sockets: `tests/integration/test_endpoints.py`."""

import pytest

from router.errors import ClientError
from router.gateway.endpoints import Endpoint
from router.relaying.relay import header_of, keep_apart, without_prompt
from router.tenant import ANONYMOUS, Tenant


def test_a_request_without_a_prompt_has_no_path_and_a_key_of_its_own() -> None:
    one, two = (
        without_prompt(Endpoint.TRANSCRIPTIONS, "m", ANONYMOUS, b"req-" + digit * 32)
        for digit in (b"1", b"2")
    )
    assert (one.model, one.paths, one.stream) == ("m", (), False)
    assert one.key != two.key
    assert without_prompt(Endpoint.VERSION, "", ANONYMOUS, b"req-" + b"a" * 32).model is None


def test_a_tenant_that_shares_no_cache_is_served_where_none_is_filled() -> None:
    salted = Tenant("acme", salt="s" * 32)
    for endpoint in (Endpoint.RESPONSE, Endpoint.VERSION):
        keep_apart(endpoint, salted)
    for endpoint in (Endpoint.TRANSCRIPTIONS, Endpoint.REALTIME, Endpoint.MORE):
        keep_apart(endpoint, ANONYMOUS)
        with pytest.raises(ClientError, match="kept apart"):
            keep_apart(endpoint, salted)


def test_a_header_is_found_or_empty() -> None:
    assert header_of([(b"a", b"1"), (b"b", b"2")], b"b") == b"2"
    assert header_of([], b"b") == b""
