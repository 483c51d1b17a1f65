"""Which exchange a request gets."""

import pytest

from router.continuing.exchange import KeptExchange
from router.continuing.keeper import CONTINUE_HEADER, StreamKeeper
from router.gateway.exchange import RequestExchange
from router.proxy import ClientRequest, Header
from router.settings import Settings


def request(*headers: Header) -> ClientRequest:
    return ClientRequest(b"POST", b"/v1/chat/completions", b"", headers, b"{}", "", 0.0)


@pytest.mark.parametrize(
    ("mode", "value", "kept"),
    [
        ("off", b"true", False),
        ("request", None, False),
        ("request", b"true", True),
        ("request", b" True", True),
        ("request", b"1", True),
        ("request", b"yes?", False),
        ("all", None, True),
        ("all", b"false", False),
    ],
)
def test_the_setting_and_the_header_choose_the_exchange(mode: str, value: bytes | None, kept: bool) -> None:
    settings = Settings.model_validate({"upstream": {"continue_streams": mode}})
    keeper = StreamKeeper(Settings())
    keeper.use(settings)
    headers: list[Header] = [(b"accept", b"*/*")]
    if value is not None:
        headers.append((CONTINUE_HEADER, value))
    maker = keeper.maker_of(request(*headers))
    assert (maker is not RequestExchange) is kept
    assert not kept or getattr(maker, "func", None) is KeptExchange
