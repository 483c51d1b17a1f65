"""Secrets from files: used, or a sentence that does not quote them."""

from pathlib import Path
from typing import Any

import pytest

from router.errors import SettingsError
from router.secret_files import BYTES_MAX, SecretWatch, with_secret_files
from router.settings import Settings

KEY = "cw-canary-0123456789"


@pytest.mark.parametrize(
    ("section", "name", "content", "value"),
    [
        ("server", "api_key", KEY + "\n", KEY),
        ("fleet", "worker_api_key", f"  {KEY}\r\n", KEY),
        ("shared", "redis_url", f"redis://user:{KEY}@redis:6379/0\n", f"redis://user:{KEY}@redis:6379/0"),
    ],
)
def test_the_value_of_a_file_takes_the_place_of_the_setting(
    tmp_path: Path, section: str, name: str, content: str, value: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    settings = with_secret_files(Settings.model_validate({section: {f"{name}_file": str(file)}}))

    found: Any = getattr(getattr(settings, section), name)
    assert (found if isinstance(found, str) else found.get_secret_value()) == value
    assert KEY not in repr(settings) or section == "shared"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("server.api_key", None, "cannot be read: no such file or directory"),
        ("server.api_key", b"", "is empty"),
        ("server.api_key", b" \n", "is empty"),
        ("server.api_key", b"\xff\xfe", "is not text"),
        ("server.api_key", KEY.encode() * BYTES_MAX, "is too long"),
        ("fleet.worker_api_key", f"{KEY}\nsecond".encode(), "printable ASCII"),
        ("shared.redis_url", f"http://user:{KEY}@redis".encode(), "must start with redis://"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_not_quoted(
    tmp_path: Path, name: str, content: bytes | None, why: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    section, _, key = name.partition(".")
    settings = Settings.model_validate({section: {f"{key}_file": str(file)}})
    with pytest.raises(SettingsError) as caught:
        with_secret_files(settings)
    (sentence,) = caught.value.problems
    assert sentence.startswith(f"{name}_file: {file}")
    assert why in sentence
    assert KEY not in sentence


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [("server", "api_key", KEY), ("fleet", "worker_api_key", KEY), ("shared", "redis_url", "redis://r")],
)
def test_a_secret_is_said_once(section: str, name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"give {name} or {name}_file, not both"):
        Settings.model_validate({section: {name: value, f"{name}_file": "/secret"}})


async def test_a_key_that_changes_is_used_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("first")
    used: list[bytes] = []
    watch = SecretWatch(str(file), used.append, now_unix_s=lambda: 1.0)
    watch.load()
    for content, expected in (("second\n", [b"first", b"second"]), ("", [b"first", b"second"])):
        file.write_text(content)
        await watch.look()
        await watch.look()
        assert used == expected
    assert watch.problem == f"{file} is empty"
