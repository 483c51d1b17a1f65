"""Hostile values come from the random numbers alone, and are JSON but where they should not be."""

import json
from random import Random

import pytest

from loadtest.fuzz.values import (
    NUMBERS,
    damaged,
    many,
    member,
    nested,
    number,
    obj,
    text,
    value,
)

MAKERS = (number, text, nested, many, value)


@pytest.mark.parametrize("make", MAKERS)
def test_the_same_random_numbers_make_the_same_value(make) -> None:  # type: ignore[no-untyped-def]
    for seed in range(50):
        assert make(Random(seed)) == make(Random(seed))


def test_the_numbers_that_broke_something_once_are_among_them() -> None:
    for broke in (10**17, 10**400, 2**53, 2**63, 2**64):
        assert str(broke).encode() in NUMBERS
    assert '"²"'.encode() in NUMBERS


def test_lone_surrogates_long_names_and_depth_are_drawn() -> None:
    drawn = [text(Random(seed)) for seed in range(2_000)]
    assert b'"\\ud800"' in drawn
    assert any(len(each) > 1_000_000 for each in drawn)
    assert max(nested(Random(seed)).count(b"[") for seed in range(200)) >= 100_000


def test_objects_are_made_of_members() -> None:
    assert json.loads(obj([member("a", b"1"), member("b", b'"x"')])) == {"a": 1, "b": "x"}


def test_damage_changes_what_it_is_done_to() -> None:
    changed = [damaged(Random(seed), b"0123456789") for seed in range(200)]
    assert all(each != b"0123456789" for each in changed)
    assert damaged(Random(1), b"") == b"\xff"
