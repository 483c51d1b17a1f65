"""Which worker keeps a response."""

from fakes.gateway import Bench

from router.relaying.responses import worker_of_response


def test_nobody_knows_a_response_that_was_never_stored(bench: Bench) -> None:
    assert worker_of_response(bench.gateway, "resp_1") is None
