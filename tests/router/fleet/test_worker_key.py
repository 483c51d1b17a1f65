"""Workers that get the fleet's key."""

import logging

import pytest

from policies import Worker
from router.destinations import Destinations
from router.fleet.discovered import DISCOVERED_LABEL, NOTE_LABEL, Note, note_text
from router.fleet.worker_key import WorkerKey

LINE = b"authorization: Bearer secret\r\n"


def worker(url: str, **labels: str) -> Worker:
    return Worker(url.partition("://")[2], 0, url, labels=labels)


def key(*networks: str, secret: str | None = "secret") -> WorkerKey:
    return WorkerKey(
        secret,
        Destinations(networks, named=["named"], keyed=True),
        urls=["http://named:8000", "https://[fd12::7]/base"],
        scopes=["ours"],
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://named:8000", True),
        ("http://named:8000/another/base", True),
        ("https://[fd12::7]:443", True),
        ("http://named:8001", False),
        ("https://named:8000", False),
        ("http://named.example:8000", True),  # connections go only into the network
        ("http://10.0.0.7:8000", True),
        ("http://[::ffff:10.0.0.7]:8000", True),
        ("http://11.0.0.7:8000", False),
        ("http://127.0.0.1:8000", False),
    ],
)
def test_the_key_is_shown_to_workers_that_the_settings_name(url: str, *, shown: bool) -> None:
    """By scheme, host and port: another port is another process, and plain HTTP is readable by all."""
    known = key("10.0.0.0/8")
    assert known.line_for(worker(url)) == (LINE if shown else b"")
    assert known.shown_at(f"{url}/health?x=y") == ("secret" if shown else None)
    assert known.is_withheld(url.partition("://")[2]) is not shown


def test_without_networks_no_address_is_trusted() -> None:
    assert key().line_for(worker("http://10.0.0.7:8000")) == b""
    for host in ("engine", "named.example", "localhost"):
        assert key().line_for(worker(f"http://{host}:8000")) == b""


def noted(url: str, scope: str) -> Worker:
    note = note_text(Note("uid", 7, scope))
    return worker(url, **{DISCOVERED_LABEL: "kubernetes:llm/a", NOTE_LABEL: note})


def test_workers_of_this_replicas_selections_are_shown_it_until_they_are_gone() -> None:
    known, url = key(), "http://10.0.0.7:8000"
    assert known.line_for(noted(url, "another")) == b""
    assert known.shown_at(url) is None
    assert known.line_for(noted(url, "ours")) == LINE
    assert known.shown_at(f"{url}/metrics") == "secret"
    assert not known.is_withheld("10.0.0.7:8000")
    known.forget(noted(url, "ours"))
    assert known.shown_at(url) is None
    known.line_for(noted(url, "ours"))
    assert known.line_for(worker(url)) == b""
    assert known.shown_at(url) is None


def test_a_pod_that_discovery_sees_is_shown_it_whatever_its_note_says() -> None:
    """Another selector is another scope, and notes are not written again for it."""
    known, seen = key(), set[str]()
    known._discovers = seen.__contains__
    assert known.line_for(noted("http://10.0.0.7:8000", "former")) == b""
    seen.add("http://10.0.0.7:8000")
    assert known.line_for(noted("http://10.0.0.7:8000", "former")) == LINE


def test_that_it_is_withheld_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    known = key()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            known.line_for(worker("http://10.0.0.7:8000"))
    assert [record.event for record in caplog.records] == ["worker.key_withheld"]  # type: ignore[attr-defined]
    assert "secret" not in caplog.text


def test_where_there_is_no_key_none_is_withheld() -> None:
    known = key(secret=None)
    assert known.line_for(worker("http://10.0.0.7:8000")) == b""
    assert known.shown_at("http://named:8000") is None
    assert not known.is_withheld("10.0.0.7:8000")


def test_another_key_takes_its_place() -> None:
    known = key()
    known.use("newer")
    assert known.line_for(worker("http://named:8000")) == b"authorization: Bearer newer\r\n"
    assert known.shown_at("http://named:8000") == "newer"
