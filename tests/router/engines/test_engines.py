"""Requirements for every engine in the table."""

import pytest

from policies import HAND_OVERS
from router.engines import DIALECTS, EngineDialect
from router.gateway.endpoints import Endpoint

every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


@every_dialect
def test_a_row_names_what_exists(dialect: EngineDialect) -> None:
    assert dialect.handover in HAND_OVERS
    assert dialect.overlooks_salt <= set(Endpoint)


@every_dialect
@pytest.mark.parametrize(
    "answer", [None, b"", b"[]", b"{}", b"nonsense", b'{"kv_events": null}', b'{"0": 5}']
)
def test_an_engine_that_says_nothing_of_events_has_no_publishers(
    dialect: EngineDialect, answer: bytes | None
) -> None:
    assert dialect.event_sources(answer, "http://10.0.0.7:8000") == ()
