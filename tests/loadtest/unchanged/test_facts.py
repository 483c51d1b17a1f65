"""Facts are lines of text, and each that differs is named."""

from pathlib import Path

import pytest

from loadtest.unchanged.facts import append, differences, digest_of, read, write


def test_facts_are_read_as_they_were_written_and_added(tmp_path: Path) -> None:
    path = tmp_path / "facts.txt"
    assert read(path) == {}

    write(path, {"op Placed": "9d"})
    append(path, "calls per request, plain", "242")

    assert read(path) == {"op Placed": "9d", "calls per request, plain": "242"}


def test_every_difference_is_named() -> None:
    before = {"same": "1", "changed": "1", "gone": "1"}
    now = {"same": "1", "changed": "2", "new": "1"}

    assert differences(before, now, ["same", "changed", "gone", "new"]) == [
        "changed: was 1, is 2",
        "gone: no longer there",
        "new: not recorded",
    ]


@pytest.mark.parametrize(("now", "differs"), [("100", False), ("204", False), ("205", True)])
def test_calls_may_fall_and_rise_by_their_noise(now: str, differs: bool) -> None:
    """2 % of 200 calls are 4."""
    assert bool(differences({"calls a": "200"}, {"calls a": now}, ["calls a"])) is differs


def test_texts_and_bytes_have_the_same_hash() -> None:
    assert digest_of("text") == digest_of(b"text")
    assert digest_of("text") != digest_of("texts")
