"""Which exchange a request gets."""

import pytest
from fakes.gateway import Bench

from router.continuing.exchange import KeptExchange
from router.continuing.keeper import CONTINUE_HEADER, StreamKeeper
from router.gateway.exchange import RequestExchange
from router.proxy import Header
from router.settings import Settings


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
def test_the_setting_and_the_header_choose_the_exchange(
    bench: Bench, mode: str, value: bytes | None, kept: bool
) -> None:
    settings = Settings.model_validate({"upstream": {"continue_streams": mode}})
    reader = bench.gateway.reader
    keeper = StreamKeeper(Settings(), reader)
    keeper.use(settings)
    headers: list[Header] = [(b"accept", b"*/*")]
    if value is not None:
        headers.append((CONTINUE_HEADER, value))
    maker = keeper.maker_of(reader.relevant(headers))
    assert (maker is not RequestExchange) is kept
    assert not kept or getattr(maker, "func", None) is KeptExchange
