"""Bounds hold where they are used, and lenient reading never exceeds them."""

import math

import pytest

from radix.bounds import (
    NAME_CHARS_MAX,
    WHOLE_MAX,
    is_base_url,
    is_name,
    parsed_whole,
    sane_real,
    sane_whole,
    whole,
)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.0, 0), (2.5, 2), (99.4, 99), (99.9, 100), (101.0, 100), (-3.0, 0), (math.inf, 100), (math.nan, 100)],
)
def test_a_computed_number_becomes_whole_and_bounded(value: float, rounded: int) -> None:
    assert whole(value, 100) == rounded


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0", 0), ("65535", 65_535), ("00080", 80), ("9007199254740991", WHOLE_MAX)),
        *(("9007199254740992", None), ("9" * 5000, None), ("0" * 5000 + "7", 7)),
        *(("", None), ("-1", None), ("1.5", None), (" 1", None), ("1_0", None)),
        *(("²", None), ("٣", None), ("１", None), ("\ud800", None)),
    ],
)
def test_a_whole_number_is_ascii_digits_within_bounds(text: str, number: int | None) -> None:
    """``"²".isdigit()`` is true and ``int("²")`` raises; ``int("٣")`` is 3, an unlikely meaning."""
    assert parsed_whole(text) == number


def test_a_number_that_a_machine_reports_is_sane_or_nothing() -> None:
    assert [sane_whole(value, 10) for value in (0, 10, 11, -1, 10**400, 1.0, True, "5", None)] == [
        *(0, 10),
        *(0,) * 7,
    ]
    assert [sane_real(value, 1.0) for value in (0.0, 0.5, 1.0)] == [0.0, 0.5, 1.0]
    assert {sane_real(value, 1.0) for value in (1.01, 1e300, -0.1, math.inf, math.nan)} == {-1.0}


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        *(("m", True), ("org/Model-7B", True), ("模型", True), ("a b", True), ("x" * NAME_CHARS_MAX, True)),
        *(("", False), ("x" * (NAME_CHARS_MAX + 1), False), ("\ud800", False), ("a\nb", False)),
        *((None, False), (5, False)),
    ],
)
def test_a_name_can_be_written_everywhere(text: object, is_one: bool) -> None:
    assert is_name(text) is is_one


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        *(("http://a", True), ("https://a:1", True), ("http://[::1]:80/base/path", True)),
        *(("http://10.0.0.7:65535", True), ("http://a:65536", False)),
        *(("http://[::1", False), ("http://a:port", False), ("http://", False), ("http:///path", False)),
        *(("not a url", False), ("", False), ("file:///etc/passwd", False), ("ftp://a", False)),
        *(("http://a/?q=1", False), ("http://a/#f", False), ("http://user@a", False), ("http://é", False)),
        *(("http://a b", False), ("http://a\nb", False), ("http://a/" + "p" * 2048, False)),
    ],
)
def test_a_worker_is_at_a_plain_url(url: str, is_one: bool) -> None:
    assert is_base_url(url) is is_one
