"""Common rules of files of keys and of tokens; the keys file's tests cover most of them."""

from pathlib import Path

import pytest

from router.tenants import KeysFileError
from router.tenants.key_entries import FILE_BYTES_MAX, Reading, content_of


def test_an_entry_that_is_there_twice_is_found_in_any_group() -> None:
    reading = Reading(b"tokens:\n  a: {}\n  a: {}", "t.yaml")
    assert [name for name, _ in reading.entries("tokens", 10)] == ["a"]
    assert reading.problems == ["t.yaml line 3: tokens.a: is there twice"]


def test_a_file_that_is_missing_or_too_long_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(KeysFileError, match=r"t\.yaml: cannot be read"):
        content_of(tmp_path / "t.yaml")
    (tmp_path / "t.yaml").write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(KeysFileError, match="is longer than"):
        content_of(tmp_path / "t.yaml")
