"""What is told of requests."""

import pytest
from fakes.gateway import Bench, chat


def test_the_log_line_of_a_request_can_be_turned_off() -> None:
    bench = Bench(observability={"request_logs": False})
    bench.start(chat())
    bench.upstream.answer()
    assert bench.log == []
    assert bench.gateway.sending.inflight == 0


@pytest.mark.parametrize(("ratio", "lines"), [(1.0, 8), (0.5, 4), (0.25, 2), (0.0, 0)])
def test_so_many_of_the_completed_requests_are_logged_and_all_others(ratio: float, lines: int) -> None:
    bench = Bench(observability={"request_log_ratio": ratio})
    for _ in range(8):
        bench.start(chat())
        bench.upstream.answer()
    assert len(bench.log) == lines
    exchange, client = bench.start(chat())
    client.left = True
    exchange.client_left()
    assert len(bench.log) == lines + 1
