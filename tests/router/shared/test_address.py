"""Every form of a Redis URL, and mistakes that are named without repeating a password."""

import ssl
from pathlib import Path

import pytest
import trustme

from router.errors import StateError
from router.shared.address import Endpoint, parse_address


def test_a_server_with_everything() -> None:
    address = parse_address("redis://us%40er:pa%2Fss@redis.example:7000/3")
    assert address.kind == "server"
    assert address.endpoints == (Endpoint("redis.example", 7000),)
    assert address.data == {"username": "us@er", "password": "pa/ss", "db": 3, "tls": None}


def test_ports_users_and_databases_have_defaults() -> None:
    address = parse_address("redis://[::1]")
    assert address.endpoints == (Endpoint("::1", 6379),)
    assert address.data == {"username": "", "password": "", "db": 0, "tls": None}


def test_a_unix_socket() -> None:
    address = parse_address("unix://:secret@/run/a%20b/v.sock?db=2")
    assert address.endpoints == (Endpoint("/run/a b/v.sock", 0),)
    assert address.data == {"username": "", "password": "secret", "db": 2, "tls": None}


def test_a_parameter_wins_over_what_stands_in_front() -> None:
    address = parse_address("redis://u:p@h/1?username=other&password=a%2520b&db=4")
    assert address.data == {"username": "other", "password": "a%20b", "db": 4, "tls": None}


def test_a_password_that_is_not_escaped_is_taken_as_it_is() -> None:
    assert parse_address("redis://:a#b[c@h").data["password"] == "a#b[c"


def test_sentinels_have_a_password_of_their_own() -> None:
    address = parse_address(
        "redis+sentinel://:data@a,b:7/main/4?sentinel_username=watcher&sentinel_password=s%26p"
    )
    assert (address.kind, address.service) == ("sentinel", "main")
    assert address.endpoints == (Endpoint("a", 26379), Endpoint("b", 7))
    assert address.data == {"username": "", "password": "data", "db": 4, "tls": None}
    assert address.sentinel == {"username": "watcher", "password": "s&p", "tls": None}


def test_a_cluster_has_many_doors() -> None:
    address = parse_address("redis+cluster://u:p@a,b:7")
    assert (address.kind, address.endpoints) == ("cluster", (Endpoint("a", 6379), Endpoint("b", 7)))


@pytest.mark.parametrize("scheme", ["rediss://h", "rediss+cluster://h", "rediss+sentinel://h/m"])
def test_tls_is_verified_unless_it_is_asked_not_to_be(scheme: str, tmp_path: Path) -> None:
    address = parse_address(scheme)
    tls = address.data["tls"]
    assert address.sentinel["tls"] is tls
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    trusting = parse_address(f"{scheme}?ssl_cert_reqs=none").data["tls"]
    assert trusting.verify_mode == ssl.CERT_NONE
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(authority)
    anyone = parse_address(f"{scheme}?ssl_check_hostname=false&ssl_ca_certs={authority}").data["tls"]
    assert (anyone.verify_mode, anyone.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert len(anyone.get_ca_certs()) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://u:hunter2@h",
        "u:hunter2@h:6379",
        "redis://u:hunter2@",
        "redis://u:hunter2@h:port",
        "redis://u:hunter2@h/first",
        "redis://u:hunter2@h?db=first",
        "redis://u:hunter2@h/-1",
        "redis://u:hunter2@a,b",
        "redis://h?password=hunter2&pasword=hunter2",
        "redis://h?hunter2",
        "unix://u:hunter2@",
        "unix://u:hunter2@host/path",
        "redis+sentinel://u:hunter2@h",
        "redis+cluster://u:hunter2@h/3",
        "redis+cluster://u:hunter2@h,,g",
        "redis+cluster://u:hunter2@h?db=3",
        "rediss://u:hunter2@h?ssl_ca_certs=/nonexistent/hunter2",
    ],
)
def test_a_mistake_is_named_without_its_words(url: str) -> None:
    with pytest.raises(StateError) as caught:
        parse_address(url)
    assert "hunter2" not in str(caught.value)


def test_a_login_is_shown_without_its_password() -> None:
    assert "hunter2" not in repr(parse_address("redis://u:hunter2@h?sentinel_password=hunter2"))
