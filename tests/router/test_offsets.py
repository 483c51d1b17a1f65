"""Places of raw fields in what they were decoded from."""

import msgspec
import pytest

from router.offsets import offset


class Found(msgspec.Struct):
    salt: msgspec.Raw


def test_a_field_is_found_where_it_is_and_not_where_the_same_bytes_are() -> None:
    text = b'{"prompt":"\\"s\\" \\"s\\"","other":"s","salt":"s"}'
    start = offset(msgspec.json.decode(text, type=Found).salt, text)
    assert start == text.rindex(b'"s"')


def test_a_field_of_a_view_is_counted_from_the_view() -> None:
    view = memoryview(b'\xef\xbb\xbf{"salt":7}')[3:]
    assert offset(msgspec.json.decode(view, type=Found).salt, view) == 8


def test_a_field_of_another_text_has_no_place() -> None:
    """It lies before the text, or behind it."""
    one, other = b'{"salt":"s"}', b'{"salt":"t"}'
    field = msgspec.json.decode(other, type=Found).salt
    with pytest.raises(AssertionError):
        offset(field, one)
