"""Tokens of the admin API: who holds one, and what is wrong with a file of them."""

import pytest

from router.tenants import KeysFileError
from router.tenants.admin_tokens import TOKENS_MAX, parsed_tokens
from router.tenants.keys import digest_of

HASH = f"sha256:{digest_of(b'secret').hex()}"


def test_a_token_is_its_holders_until_it_expires() -> None:
    tokens = parsed_tokens(
        f"tokens: {{ann: {{role: read, hash: '{HASH}', expires: 1970-01-01T00:01:40}}}}".encode(), "t.yaml"
    )
    holder = tokens.holder(b"secret", 99.0)
    assert holder is not None
    assert (holder.name, holder.role, holder.expires_unix_s) == ("ann", "read", 100.0)
    assert tokens.holder(b"secret", 100.0) is None
    assert tokens.holder(b"Secret", 99.0) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "t.yaml: is empty; write 'tokens: {}' for no tokens"),
        ("tenants: {}", "t.yaml line 1: must be a mapping 'tokens: {NAME: {...}}'"),
        ("tokens: {a b: {}}", "t.yaml line 1: tokens.a b: is no name of a token"),
        (f"tokens: {{a: {{hash: '{HASH}'}}}}", "t.yaml line 1: tokens.a.role: field required"),
        (f"tokens: {{a: {{role: admin, hash: '{HASH}'}}}}", "t.yaml line 1: tokens.a.role: input should be"),
        ("tokens: {a: {role: read, hash: secret}}", "t.yaml line 1: tokens.a.hash: must be 'sha256:' and"),
        (
            f"tokens:\n  a: {{role: read, hash: '{HASH}'}}\n  b: {{role: read, hash: '{HASH}'}}",
            "t.yaml line 3: tokens.b.hash: is the token of a already",
        ),
    ],
)
def test_a_problem_names_the_line_and_the_field_and_no_secret(content: str, problem: str) -> None:
    with pytest.raises(KeysFileError) as caught:
        parsed_tokens(content.encode(), "t.yaml")
    (found,) = caught.value.problems
    assert found.startswith(problem)
    assert "secret" not in found


def test_there_are_not_more_tokens_than_anybody_needs() -> None:
    entries = ", ".join(f"t{number}: {{}}" for number in range(TOKENS_MAX + 1))
    with pytest.raises(KeysFileError, match=f"has more than {TOKENS_MAX} entries"):
        parsed_tokens(f"tokens: {{{entries}}}".encode(), "t.yaml")
