"""Where the gateway connects to, and where not."""

import socket
from typing import Any

import pytest

from router.destinations import DestinationRefused, Destinations
from router.errors import ClientError

METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "[fe80::1]",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "0.0.0.0",
    "0",
    "::",
    "224.0.0.1",
    "255.255.255.255",
    "ff02::1",
]


def refused(destinations: Destinations, host: str) -> bool:
    try:
        destinations.check_host(host)
    except ClientError as error:
        return error.code == "worker_host_refused"
    return False


@pytest.mark.parametrize("host", METADATA)
def test_metadata_services_are_refused_however_their_address_is_written(host: str) -> None:
    assert refused(Destinations(), host)


@pytest.mark.parametrize(
    "host", ["10.0.0.7", "192.168.1.2", "8.8.8.8", "127.0.0.1", "::1", "fd12::7", "engine-1"]
)
def test_where_engines_live_is_allowed(host: str) -> None:
    assert not refused(Destinations(), host)


def test_networks_allow_what_they_hold_and_nothing_else() -> None:
    destinations = Destinations(["10.1.0.0/16", "fd12::/64"])
    assert [refused(destinations, host) for host in ("10.1.2.3", "10.2.0.1", "fd12::9", "fd13::9")] == [
        False,
        True,
        False,
        True,
    ]
    assert not refused(Destinations(["169.254.0.0/16"]), "169.254.7.7")  # the operator says so


def test_loopback_can_be_refused_in_any_form() -> None:
    destinations = Destinations(loopback=False)
    for host in ("127.0.0.1", "127.9.9.9", "::1", "2130706433", "::ffff:127.0.0.1", "127.1"):
        assert refused(destinations, host)


def test_names_are_allowed_by_their_ends_and_addresses_only_by_networks() -> None:
    destinations = Destinations(hosts=[".engines.svc", "special"])
    allowed = ("a.engines.svc", "A.Engines.SVC", "a.engines.svc.", "special")
    assert not any(refused(destinations, host) for host in allowed)
    for host in (
        "engines.svc",
        "a.engines.svc.example",
        "notspecial",
        "a.special",
        "10.0.0.1",
        "aengines.svc",
    ):
        assert refused(destinations, host)
    assert not refused(Destinations(["10.0.0.0/8"], [".engines.svc"]), "10.0.0.1")


def test_what_the_settings_name_is_not_judged() -> None:
    assert not refused(Destinations(["10.0.0.0/8"], named=["169.254.7.7", "Elsewhere"]), "169.254.7.7")
    assert not refused(Destinations(hosts=[".svc"], named=["Elsewhere"]), "elsewhere")


def test_a_url_is_judged_by_its_host() -> None:
    with pytest.raises(ClientError):
        Destinations().check_url("http://[::ffff:169.254.169.254]:80/latest")
    Destinations().check_url("http://10.0.0.1:80")


def answering(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name have these addresses."""

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


async def test_only_addresses_that_are_allowed_are_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "169.254.169.254", "10.0.0.7", "::ffff:169.254.169.254", "10.0.0.7")
    assert await Destinations().resolve("engine", 80) == ["10.0.0.7"]
    assert await Destinations(named=["engine"]).resolve("ENGINE", 80) == [
        "169.254.169.254",
        "10.0.0.7",
        "::ffff:169.254.169.254",
    ]
    with pytest.raises(DestinationRefused, match="where no workers may be"):
        await Destinations(["10.9.0.0/16"]).resolve("engine", 80)


async def test_an_address_needs_no_resolver() -> None:
    assert await Destinations().resolve("127.0.0.1", 80) == ["127.0.0.1"]
