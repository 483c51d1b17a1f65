"""Addresses to which the gateway connects, and refused ones."""

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
    "169.254.169.254.",
    "169.254.169.254..",
    "0xa9fea9fe.",
    "2852039166.",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::a9fe:a9fe",  # RFC 8215 with a prefix of 96 bits, and of 48, 56 and 64
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:a9:fe:a9fe::",
    "64:ff9b:1:0:a9:fea9:fe00:0",
    "::ffff:0:a9fe:a9fe",  # RFC 2765
    "2001:0:a9fe:a9fe::1",  # Teredo: the server
    "2001:0:808:808::5601:5601",  # and the client, whose bits are inverted
    "fd12::5efe:a9fe:a9fe",  # ISATAP
    "fe80::5efe:a00:1",
    "2002:a9fe:a9fe:1:2:3:4:5",
    "::ffff:169.254.169.254%1",
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
    "host",
    [
        *("10.0.0.7", "192.168.1.2", "8.8.8.8", "127.0.0.1", "::1", "fd12::7", "engine-1", "10.0.0.7."),
        *("64:ff9b::a00:7", "64:ff9b:1::a00:7", "64:ff9b:1:a00:0:700::", "64:ff9b:1:0:a:0:700::"),
        *("::ffff:10.0.0.7", "2002:a00:7::1", "fd12::5efe:a00:7", "2001:db8::a9fe:a9fe"),
    ],
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
    assert not refused(Destinations(["169.254.0.0/16"]), "169.254.7.7")  # the operator allows it


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
        Destinations().check_host("::ffff:169.254.169.254")
    Destinations().check_host("10.0.0.1")


def answering(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Give every name these addresses."""

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


def test_an_address_inside_another_counts_where_networks_are_named() -> None:
    destinations = Destinations(["10.0.0.0/8"])
    for host in ("::ffff:10.0.0.7", "64:ff9b::a00:7", "64:ff9b:1::a00:7", "10.0.0.7."):
        assert not refused(destinations, host)
    for host in ("::ffff:11.0.0.7", "64:ff9b::b00:7", "64:ff9b:1::b00:7", "2002:b00:7::", "2001:0:a00:7::1"):
        assert refused(destinations, host)


def engine_host_refused(destinations: Destinations, host: str) -> bool:
    try:
        destinations.check_engine_host(host)
    except ClientError as error:
        return error.code == "worker_host_refused"
    return False


def test_a_name_that_engines_resolve_must_be_listed_where_networks_are_named() -> None:
    """The gateway does not judge the address that it has there."""
    assert not engine_host_refused(Destinations(), "evil.example")
    assert engine_host_refused(Destinations(), "169.254.169.254.")
    destinations = Destinations(["10.0.0.0/8"], named=["Prefill-0"])
    assert engine_host_refused(destinations, "evil.example")
    assert engine_host_refused(destinations, "localhost")
    for host in ("10.0.0.7", "prefill-0", "PREFILL-0", "127.0.0.1"):
        assert not engine_host_refused(destinations, host)
    listed = Destinations(["10.0.0.0/8"], [".engines.svc"])
    assert not engine_host_refused(listed, "a.engines.svc")
    assert engine_host_refused(listed, "a.engines.svc.example")


@pytest.mark.parametrize(
    ("networks", "hosts", "host", "entrusted"),
    [
        ((), (), "10.0.0.7", False),
        ((), (), "engine", False),
        (("10.0.0.0/8",), (), "10.0.0.7", True),
        (("10.0.0.0/8",), (), "::ffff:10.0.0.7", True),
        (("10.0.0.0/8",), (), "11.0.0.7", False),
        (("10.0.0.0/8",), (), "127.0.0.1", False),
        (("127.0.0.0/8",), (), "127.0.0.1", True),
        (("10.0.0.0/8",), (), "engine", True),
        (("10.0.0.0/8",), (), "localhost", False),
        (("10.0.0.0/8",), (), "named", False),
        ((), (".svc",), "a.svc", True),
        ((), (".svc",), "a.svc.example", False),
        ((), (".svc",), "10.0.0.7", False),
        (("10.0.0.0/8",), (".svc",), "engine", False),
        (("10.0.0.0/8",), (".svc",), "10.0.0.7", True),
    ],
)
def test_the_key_is_entrusted_to_hosts_that_the_settings_name(
    networks: tuple[str, ...], hosts: tuple[str, ...], host: str, *, entrusted: bool
) -> None:
    assert Destinations(networks, hosts, named=["named"], keyed=True).entrusts(host) is entrusted


async def test_a_name_that_is_trusted_for_its_networks_leads_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even to this machine, where any process may listen that must not get the key."""
    answering(monkeypatch, "127.0.0.1", "10.0.0.7", "::ffff:127.0.0.1", "11.0.0.1")
    assert await Destinations(["10.0.0.0/8"], keyed=True).resolve("engine", 80) == ["10.0.0.7"]
    without_a_key = await Destinations(["10.0.0.0/8"]).resolve("engine", 80)
    assert without_a_key == ["127.0.0.1", "10.0.0.7", "::ffff:127.0.0.1"]
