"""Limits of clients by address: connections, requests, and addresses behind proxies."""

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import RequestRejected
from router.proxy import ClientQuota, Clients, Refusal
from router.proxy.clients import BUCKETS_MAX, LOG_S, Client


class Crowd:
    """Clients on a clock of the test."""

    def __init__(self, quota: ClientQuota) -> None:
        self.now_s = 1000.0
        self.refused: list[Refusal] = []
        self.clients = Clients(quota, lambda: self.now_s, self.refused.append)

    def enter(self, peer: str) -> Client:
        client = self.clients.enter(peer)
        assert client is not None
        return client

    def asks(self, peer: str, forwarded_for: str = "") -> bool:
        """True if one more request is allowed on a new connection."""
        client = self.enter(peer)
        headers = [(b"x-forwarded-for", forwarded_for.encode())] if forwarded_for else []
        try:
            self.clients.take(client, self.clients.forwarded_for(client, headers))
        except RequestRejected:
            return False
        finally:
            self.clients.leave(client)
        return True


def rated(rate: float, burst: int = 1, **more: Any) -> ClientQuota:
    return ClientQuota(requests_per_client_per_s=rate, requests_per_client_burst=burst, **more)


def test_connections_are_limited_in_sum_and_a_place_is_free_again() -> None:
    crowd = Crowd(ClientQuota(connections_max=2))
    first = crowd.enter("192.0.2.1")
    crowd.enter("192.0.2.1")
    assert crowd.clients.enter("192.0.2.2") is None
    assert (crowd.clients.connections, crowd.refused) == (2, [Refusal.CONNECTIONS])
    crowd.clients.leave(first)
    crowd.enter("192.0.2.2")


def test_where_all_places_are_taken_one_that_can_be_spared_is_closed_for_each_new_one() -> None:
    crowd = Crowd(ClientQuota(connections_max=2))
    spare = [crowd.enter("192.0.2.1"), crowd.enter("192.0.2.1")]

    def make_room() -> bool:
        if not spare:
            return False
        crowd.clients.leave(spare.pop())
        return True

    assert crowd.clients.enter("192.0.2.2", make_room)
    crowd.clients.use(ClientQuota(connections_max=1))  # both must go, but only one can
    assert crowd.clients.enter("192.0.2.3", make_room) is None
    assert (crowd.clients.connections, len(spare)) == (1, 0)
    assert crowd.refused == [Refusal.IDLE, Refusal.IDLE, Refusal.CONNECTIONS]


def test_a_client_over_its_own_limit_costs_nobody_a_place() -> None:
    crowd = Crowd(ClientQuota(connections_max=1, connections_per_client_max=1))
    crowd.enter("192.0.2.1")
    assert crowd.clients.enter("192.0.2.1", lambda: pytest.fail("nobody is to be closed")) is None
    assert crowd.refused == [Refusal.CONNECTIONS_PER_CLIENT]


def test_connections_are_limited_by_client_and_a_client_by_ipv6_is_a_network() -> None:
    crowd = Crowd(ClientQuota(connections_per_client_max=1))
    for peer in ("192.0.2.1", "192.0.2.2", "2001:db8:0:1::1", "2001:db8:0:2::1"):
        crowd.enter(peer)
    for peer in ("192.0.2.1", "::ffff:192.0.2.2", "2001:db8:0:1:ffff::9", "2001:db8:0:2::2%eth0"):
        assert crowd.clients.enter(peer) is None
    assert crowd.refused == [Refusal.CONNECTIONS_PER_CLIENT] * 4
    assert crowd.clients.connections == 4


def test_who_has_no_address_and_who_is_a_proxy_is_not_limited_as_a_client() -> None:
    crowd = Crowd(ClientQuota(connections_per_client_max=1, trusted_proxies=("10.0.0.0/8",)))
    for peer in ("", "", "10.1.2.3", "10.1.2.3"):
        crowd.enter(peer)


@given(
    st.lists(st.floats(0.0, 3.0), max_size=60),
    st.sampled_from([0.5, 1.0, 3.0, 10.0]),
    st.integers(1, 5),
)
def test_the_rate_is_that_of_a_token_bucket(gaps_s: list[float], rate: float, burst: int) -> None:
    """Compare with the textbook bucket; within rounding, either may be right."""
    crowd = Crowd(rated(rate, burst))
    tokens, last_s = float(burst), crowd.now_s
    for gap_s in gaps_s:
        crowd.now_s += gap_s
        tokens, last_s = min(burst, tokens + (crowd.now_s - last_s) * rate), crowd.now_s
        allowed = crowd.asks("192.0.2.1")
        if abs(tokens - 1.0) > 1e-6:
            assert allowed == (tokens > 1.0)
        tokens -= allowed


def test_retry_after_is_when_one_more_is_allowed() -> None:
    crowd = Crowd(rated(2.0, 3))
    client = crowd.enter("192.0.2.1")
    for _ in range(3):
        crowd.clients.take(client, "")
    with pytest.raises(RequestRejected) as caught:
        crowd.clients.take(client, "")
    assert caught.value.retry_after_s == pytest.approx(0.5)
    assert (caught.value.status, caught.value.code) == (429, "client_rate_limit_exceeded")
    crowd.now_s += 0.5
    crowd.clients.take(client, "")


def test_clients_do_not_take_each_others_requests() -> None:
    crowd = Crowd(rated(1.0, 1))
    assert [crowd.asks(peer) for peer in ("192.0.2.1", "192.0.2.2", "192.0.2.1")] == [True, True, False]


@pytest.mark.parametrize(
    ("peer", "header", "found"),
    [
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "198.51.100.1, 192.0.2.7", "192.0.2.7"),  # the client's own part is on the left
        ("10.0.0.1", "192.0.2.7, 10.9.9.9", "192.0.2.7"),
        ("10.0.0.1", "10.8.8.8, 10.9.9.9", "10.8.8.8"),
        ("10.0.0.1", "192.0.2.7:4711", "192.0.2.7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("10.0.0.1", "192.0.2.7, unknown", ""),
        ("10.0.0.1", "unknown, 10.9.9.9", "10.9.9.9"),
        ("10.0.0.1", "", ""),
        ("10.0.0.1", "," * 1000, ""),
        ("10.0.0.1", "\xff\r\n", ""),
        ("192.0.2.1", "198.51.100.1", ""),
    ],
)
def test_a_trusted_proxy_and_nobody_else_says_for_whom_it_asks(peer: str, header: str, found: str) -> None:
    crowd = Crowd(ClientQuota(trusted_proxies=("10.0.0.0/8", "fd00::/8")))
    client = crowd.enter(peer)
    assert crowd.clients.forwarded_for(client, [(b"x-forwarded-for", header.encode("latin-1"))]) == found


def test_several_lines_of_the_header_are_one_list() -> None:
    crowd = Crowd(ClientQuota(trusted_proxies=("10.0.0.0/8",)))
    lines = [(b"x-forwarded-for", b"192.0.2.7"), (b"accept", b"x"), (b"x-forwarded-for", b"10.1.1.1")]
    assert crowd.clients.forwarded_for(crowd.enter("10.0.0.1"), lines) == "192.0.2.7"


def test_requests_count_for_those_whom_a_proxy_names() -> None:
    crowd = Crowd(rated(1.0, trusted_proxies=("10.0.0.0/8",)))
    assert crowd.asks("10.0.0.1", "192.0.2.7")
    assert not crowd.asks("10.0.0.2", "192.0.2.7")
    assert crowd.asks("10.0.0.1", "192.0.2.8")
    assert crowd.asks("10.0.0.1")
    assert crowd.asks("10.0.0.1")
    assert crowd.asks("192.0.2.9", "192.0.2.10")
    assert not crowd.asks("192.0.2.9", "192.0.2.11")  # not believed


def test_a_flood_of_addresses_fills_no_memory() -> None:
    crowd = Crowd(rated(0.001, trusted_proxies=("10.0.0.0/8",)))
    proxy = crowd.enter("10.0.0.1")
    for number in range(BUCKETS_MAX + 1000):
        crowd.clients.take(proxy, f"172.{16 + (number >> 16)}.{number >> 8 & 255}.{number & 255}")
    assert len(crowd.clients._full_s) == BUCKETS_MAX
    crowd.clients.take(proxy, "172.16.0.0")  # forgotten, since it asked longest ago
    with pytest.raises(RequestRejected):
        crowd.clients.take(proxy, "172.17.0.0")


def test_a_flood_of_refusals_is_one_line_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    crowd = Crowd(ClientQuota(connections_max=1))
    crowd.enter("192.0.2.1")
    times_s = deque([0.0, 1.0, LOG_S - 2, 1.0])
    while times_s:
        crowd.now_s += times_s.popleft()
        assert crowd.clients.enter("192.0.2.1") is None
    assert len(crowd.refused) == 4
    assert [record.msg for record in caplog.records] == ["clients are refused; a metric counts them"] * 2


def test_other_limits_count_from_the_next_connection_and_request_on() -> None:
    """Also for clients that connected before; a connection without address belongs to no client."""
    crowd = Crowd(ClientQuota())
    early, nobody = crowd.enter("10.0.0.1"), crowd.enter("")
    assert not crowd.clients.watches_requests
    crowd.clients.use(rated(1.0, connections_per_client_max=1))
    assert crowd.clients.watches_requests
    assert crowd.clients.enter("10.0.0.1") is None
    assert crowd.clients.enter("10.0.0.2") is not None
    crowd.clients.take(early, "")
    with pytest.raises(RequestRejected):
        crowd.clients.take(early, "")
    for _ in range(3):
        crowd.clients.take(nobody, "")
    crowd.clients.use(ClientQuota())
    assert crowd.clients.enter("10.0.0.1") is not None
    crowd.clients.take(early, "")


def test_there_are_no_more_connections_than_files() -> None:
    for said, bound in ((0, 100), (30, 30), (300, 100)):
        clients = Clients(ClientQuota(connections_max=said), lambda: 0.0, lambda _: None, files_max=100)
        assert clients.connections_max == bound
