from collections.abc import Sequence
from typing import Any, cast

import pytest
from fakes.gateway import FakePool, FakeUpstream
from fakes.handover import PairBench

from router.handover import Pair, PairSink
from router.picker.sidecar import SHARED_PATHS, send_to_sidecar
from router.proxy import RequestHead


class _Facts:
    stream, n, paths, computes_all = True, 1, (b"",), False

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint


def sent(endpoint: str) -> dict[str, Any]:
    bench = PairBench(prefill=1, decode=1)
    prefill, decode = bench.local("p0:80"), bench.local("d0:80")
    body: Sequence[bytes] = (b"{}",)
    lines = b"x-request-id: a\r\n"
    head = RequestHead(b"POST", endpoint.encode())
    pair = Pair(_Facts(endpoint), head, lines, body, b"a", prefill, decode)
    found: list[dict[str, Any]] = []

    def way(*given: Any, **more: Any) -> FakeUpstream:
        names = ("head", "lines", "body", "sink")
        found.append({**dict(zip(names, given, strict=True)), **more})
        return FakeUpstream(cast(FakePool, decode.pool), found[-1])

    send_to_sidecar(way, body, pair, cast(PairSink, None))
    (each,) = found
    return each


@pytest.mark.parametrize("endpoint", sorted(SHARED_PATHS))
def test_the_prefill_worker_is_named_where_the_sidecar_splits(endpoint: str) -> None:
    assert sent(endpoint)["lines"] == b"x-request-id: a\r\nx-prefiller-host-port: p0:80\r\n"


def test_it_is_not_named_where_the_sidecar_passes_a_request_on() -> None:
    """So the decode worker does all of it, and the prefill worker computes nothing unseen."""
    assert sent("/v1/messages")["lines"] == b"x-request-id: a\r\n"
