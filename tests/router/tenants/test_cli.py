"""`cacheway keys`: what an operator sees."""

import time
from pathlib import Path

import pytest

from router.tenants.admin_tokens import load_tokens
from router.tenants.cli import main
from router.tenants.keys import digest_of
from router.tenants.keys_file import load_keys


def test_what_a_new_key_prints_is_a_keys_file_that_knows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "acme", "--salt", "--expires", "2999-01-01"]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n\n")
    key = first.splitlines()[-1]
    assert key.startswith("cw-")
    assert key not in rest
    file = tmp_path / "keys.yaml"
    file.write_text(rest)
    table = load_keys(file)
    assert [stored.digest for stored in table.keys["acme"]] == [digest_of(key.encode())]
    assert len(table.tenants["acme"].salt) == 43
    assert list(table.ends()) == [("acme", 32472144000.0)]


def test_without_options_a_key_has_no_end_and_no_salt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "acme"]) == 0
    said = capsys.readouterr().out
    assert "salt" not in said
    assert "expires" not in said


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["new", "a b"], "'a b' is no name"),
        (["new", "a", "--expires", "soon"], "--expires 'soon' is no date"),
    ],
)
def test_a_key_that_no_file_could_hold_is_not_made(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"cacheway keys: {problem}")


def test_a_check_says_what_a_file_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.yaml"
    hashes = [f"sha256:{digest_of(key).hex()}" for key in (b"1", b"2", b"3")]
    file.write_text(
        f"tenants:\n  acme:\n    keys:\n      - {hashes[0]}\n"
        f"      - {{hash: {hashes[1]}, expires: 2999-01-01}}\n"
        f"      - {{hash: {hashes[2]}, expires: 2020-01-01}}\n    weight: 2\n    class: high\n"
        "    salt: 0123456789abcdef\n    limits: {requests_per_minute: 7}\n"
        "    cache_share: 0.125\n  guest: {}\n"
    )
    assert main(["check", str(file)]) == 0
    head, acme, guest = capsys.readouterr().out.splitlines()
    assert head == f"{file}: 2 tenants, 3 keys"
    assert acme == (
        "acme: 2 of 3 keys valid now, one until 2999-01-01T00:00:00+00:00, weight 2, class high, "
        "cache kept apart, 12.5% of KV space, 7 requests per minute"
    )
    assert guest == "guest: 0 of 0 keys valid now"


def test_a_check_of_a_file_that_cannot_be_used_says_all_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("tenants:\n  a: {weight: -1}\n  b: {salt: x}\n")
    assert main(["check", str(file)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"cacheway keys: {file} line 2: tenants.a.weight: ")
    assert second.startswith(f"cacheway keys: {file} line 3: tenants.b.salt: ")


@pytest.mark.parametrize(("role", "expires"), [("read", ""), ("write", "2099-01-01")])
def test_a_new_token_opens_the_admin_api_with_what_is_printed_beside_it(
    role: str, expires: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["admin", "ann", "--role", role, *(["--expires", expires] if expires else [])]) == 0
    lines = capsys.readouterr().out.splitlines()
    file = tmp_path / "tokens.yaml"
    file.write_text("\n".join(lines[lines.index("# For the file of tokens (admin.tokens_file):") + 1 :]))
    holder = load_tokens(file).holder(lines[1].encode(), time.time())
    assert holder is not None
    assert (holder.name, holder.role) == ("ann", role)
    assert lines[1] not in file.read_text()

    assert main(["check", str(file)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{file}: 1 token"
    assert said[1] == f"ann: may {role}" + (", one until 2099-01-01T00:00:00+00:00" if expires else "")


def test_a_token_that_no_file_could_hold_is_not_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "a b"]) == 2
    assert "'a b' is no name of a token" in capsys.readouterr().err
