"""Endpoints of publishers are read as this replica can reach them."""

import pytest

from router.engines.sources import at_worker, decoded, shifted

URL = "http://10.0.0.7:8000"


@pytest.mark.parametrize(
    ("endpoint", "url", "reached"),
    [
        ("tcp://*:5557", URL, "tcp://10.0.0.7:5557"),
        ("tcp://0.0.0.0:5557", URL, "tcp://10.0.0.7:5557"),
        ("tcp://[::]:5557", "http://[fd00::7]:8000", "tcp://[fd00::7]:5557"),
        ("tcp://kv.llm.svc:5557", URL, "tcp://kv.llm.svc:5557"),
        ("ipc:///run/kv.sock", URL, "ipc:///run/kv.sock"),
        ("tcp://*:0", URL, None),
        ("tcp://*:65536", URL, None),
        ("udp://10.0.0.7:5557", URL, None),
        ("tcp://a b:5557", URL, None),
        (None, URL, None),
    ],
)
def test_an_endpoint_is_one_that_can_be_connected_to_or_none(
    endpoint: str | None, url: str, reached: str | None
) -> None:
    assert at_worker(endpoint, url) == reached


@pytest.mark.parametrize(
    ("endpoint", "rank", "there"),
    [
        ("tcp://10.0.0.7:5557", 0, "tcp://10.0.0.7:5557"),
        ("tcp://10.0.0.7:5557", 3, "tcp://10.0.0.7:5560"),
        ("ipc:///run/kv.sock", 3, "ipc:///run/kv.sock_dp3"),
        ("", 3, ""),
    ],
)
def test_each_rank_publishes_at_an_endpoint_of_its_own(endpoint: str, rank: int, there: str) -> None:
    assert shifted(endpoint, rank) == there


@pytest.mark.parametrize("answer", [None, b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_page_that_is_not_of_its_kind_says_nothing(answer: bytes | None) -> None:
    assert decoded(answer, dict[str, int]) is None
