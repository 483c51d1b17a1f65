"""The parts that all exchanges share are built once, and take new settings as a whole."""

import orjson
import pytest
from fakes.gateway import Bench, chat

from router.gateway.endpoints import Endpoint
from router.settings import Settings
from router.tenant import ANONYMOUS


def test_new_settings_reach_all_parts_and_leave_what_is_in_flight_alone() -> None:
    bench = Bench()
    _, client = bench.start(chat())
    bench.gateway.use(
        Settings.model_validate(
            {
                "server": {"max_concurrent_requests": 1},
                "queue": {"disable_queue": True, "default_class": "low"},
                "observability": {"request_logs": False},
            }
        )
    )
    _, second = bench.start(chat())
    assert (second.status, second.error["code"]) == (429, "too_many_requests")
    bench.upstream.answer()
    assert client.status == 200
    assert bench.log == []
    parsed = bench.gateway.reader.parse(Endpoint.CHAT, orjson.dumps(chat()), ANONYMOUS)
    assert bench.gateway.reader.flow_of(parsed, ANONYMOUS, ()) == "low/"


@pytest.mark.parametrize("traced", [True, False])
def test_requests_are_traced_only_if_somebody_wants_that(traced: bool) -> None:
    bench = Bench()
    if not traced:
        bench.gateway.reports.trace_request = None
    bench.start(chat())
    bench.upstream.answer()
    assert len(bench.trace) == traced
