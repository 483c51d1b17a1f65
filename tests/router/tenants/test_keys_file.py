"""The keys file: what it may say, and how it is told what is wrong."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from router.tenant import Tenant, TenantLimits
from router.tenants import KeysFileError, TenantKey
from router.tenants.key_entries import FILE_BYTES_MAX
from router.tenants.keys import digest_of
from router.tenants.keys_file import TENANTS_MAX, load_keys, parsed_keys

ONE, OTHER = (f"sha256:{digest_of(key).hex()}" for key in (b"one", b"other"))

FULL = f"""
tenants:
  acme:
    keys:
      - {ONE}
      - hash: {OTHER}
        not_before: 2026-12-01
        expires: 2027-03-01T00:00:00+01:00
    weight: 2
    class: high
    salt: 0123456789abcdef
    cache_share: 0.25
    limits: {{requests_per_minute: 600, tokens_per_minute: 1000000, concurrent_tokens: 200000}}
  guest: {{}}
"""


def problems(content: str) -> tuple[str, ...]:
    with pytest.raises(KeysFileError) as refused:
        parsed_keys(content.encode(), "keys.yaml")
    return refused.value.problems


def test_everything_a_file_may_say() -> None:
    table = parsed_keys(FULL.encode(), "keys.yaml")
    assert table.tenants == {
        "acme": Tenant(
            "acme",
            2.0,
            "high",
            "0123456789abcdef",
            TenantLimits(600, 1_000_000, 200_000),
            configured=True,
            namespace=b"0123456789abcdef",
            cache_share=0.25,
        ),
        "guest": Tenant("guest", configured=True),
    }
    begin = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    end = datetime(2027, 2, 28, 23, tzinfo=UTC).timestamp()
    assert table.keys == {
        "acme": (
            TenantKey(digest_of(b"one"), -math.inf, math.inf),
            TenantKey(digest_of(b"other"), begin, end),
        ),
        "guest": (),
    }


def test_json_says_the_same() -> None:
    content = {
        "tenants": {
            "acme": {
                "keys": [
                    ONE,
                    {
                        "hash": OTHER,
                        "not_before": "2026-12-01T00:00:00Z",
                        "expires": "2027-03-01T00:00:00+01:00",
                    },
                ],
                "weight": 2,
                "class": "high",
                "salt": "0123456789abcdef",
                "cache_share": 0.25,
                "limits": {
                    "requests_per_minute": 600,
                    "tokens_per_minute": 1_000_000,
                    "concurrent_tokens": 200_000,
                },
            },
            "guest": {},
        }
    }
    assert parsed_keys(json.dumps(content).encode(), "k") == parsed_keys(FULL.encode(), "k")


def test_a_file_without_tenants_lets_nobody_in() -> None:
    assert parsed_keys(b"tenants: {}", "k").tenants == {}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "keys.yaml: is empty"),
        ("- a", "keys.yaml line 1: must be a mapping 'tenants:"),
        ("tenants: [acme]", "keys.yaml line 1: must be a mapping"),
        ("tenants: {", "keys.yaml line 2: is not YAML"),
        ("tenants:\n  acme:\n   weight: 1\n  x", "keys.yaml line 5: is not YAML"),
        ("tenants: {}\nmore: 1", "keys.yaml line 2: more: there is no such field"),
        ("tenants:\n  a/b: {}", "keys.yaml line 2: tenants.a/b: is no name of a tenant"),
        ("tenants:\n  7: {}", "keys.yaml line 2: tenants.7: is no name of a tenant"),
        ("tenants:\n  a: 5", "keys.yaml line 2: tenants.a: must be a mapping"),
        ("tenants:\n  a:\n    klass: x", "keys.yaml line 3: tenants.a.klass: there is no such field"),
        ("tenants:\n  a:\n    weight: 0", "keys.yaml line 3: tenants.a.weight: input should be greater"),
        (
            "tenants:\n  a:\n    cache_share: 0",
            "keys.yaml line 3: tenants.a.cache_share: input should be greater",
        ),
        (
            "tenants:\n  a:\n    cache_share: 1.1",
            "keys.yaml line 3: tenants.a.cache_share: input should be less",
        ),
        ("tenants:\n  a:\n    weight: .inf", "keys.yaml line 3: tenants.a.weight: "),
        ("tenants:\n  a:\n    class: a b", "keys.yaml line 3: tenants.a.class: string should match"),
        ("tenants:\n  a:\n    salt: short", "keys.yaml line 3: tenants.a.salt: string should match"),
        ("tenants:\n  a:\n    salt: 'quo\"te-quote-quote'", "keys.yaml line 3: tenants.a.salt: "),
        (
            "tenants:\n  a:\n    limits:\n      tokens_per_minute: 0",
            "keys.yaml line 4: tenants.a.limits.tokens_per_minute: input should be greater than 0",
        ),
        (
            "tenants:\n  a:\n    keys:\n    - cw-key",
            "keys.yaml line 4: tenants.a.keys.0.hash: must be 'sha256:'",
        ),
        (
            "tenants:\n  a:\n    keys:\n    - sha256:12",
            "keys.yaml line 4: tenants.a.keys.0.hash: string should",
        ),
        (
            f"tenants:\n  a:\n    keys:\n    - {ONE}\n    - hash: {OTHER}\n      expires: soon",
            "keys.yaml line 6: tenants.a.keys.1.expires: must be a date or a time",
        ),
        (
            f"tenants:\n  a:\n    keys:\n    - {{hash: {ONE}, not_before: 2027-01-02, expires: 2027-01-02}}",
            "keys.yaml line 4: tenants.a.keys.0: expires must be later than not_before",
        ),
        (
            f"tenants:\n  a:\n    keys: [{ONE}]\n  b:\n    keys:\n    - {OTHER}\n    - {ONE}",
            "keys.yaml line 7: tenants.b.keys.1: is the key of a already",
        ),
        (
            f"tenants:\n  a:\n    keys:\n    - {ONE}\n    - {ONE}",
            "keys.yaml line 5: tenants.a.keys.1: is the key of a already",
        ),
        ("tenants:\n  a: {}\n  b: {}\n  a: {}", "keys.yaml line 4: tenants.a: is there twice"),
        (
            '{"tenants": {"a": {"weight": 1,\n"weight": 2}}}',
            "keys.yaml line 2: tenants.a.weight: is there twice",
        ),
        ("tenants: !!python/object:os.system {}", "keys.yaml line 1: is not YAML"),
    ],
)
def test_a_problem_names_the_line_and_the_field(content: str, problem: str) -> None:
    (found,) = problems(content)
    assert found.startswith(problem)


def test_all_problems_are_told_at_once() -> None:
    found = problems("tenants:\n  a: {weight: x}\n  b: {salt: x}\n  c: {}\nmore: 1\n")
    assert [problem.split(": ")[1] for problem in found] == ["more", "tenants.a.weight", "tenants.b.salt"]


def test_no_problem_quotes_what_may_be_a_secret() -> None:
    secret = "cw-hunter2hunter2hunter2"
    keys = f"keys: [{secret}, {{hash: {secret}, expires: {secret}}}]"
    content = f"tenants:\n  a:\n    {keys}\n    salt: '{secret}!'\n"
    assert secret not in "".join(problems(content + f"    class: {secret} {secret}\n    weight: {secret}\n"))
    assert secret not in "".join(problems(f"tenants: {{a: {{salt: {secret}, salt"))


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_bytes(b"tenants: {}" + b" " * FILE_BYTES_MAX)
    with pytest.raises(KeysFileError, match=f"is longer than {FILE_BYTES_MAX} bytes"):
        load_keys(file)
    many = "".join(f"  t{index}: {{}}\n" for index in range(TENANTS_MAX + 1))
    assert problems(f"tenants:\n{many}") == (
        f"keys.yaml line 1: tenants: has more than {TENANTS_MAX} entries",
    )


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(KeysFileError, match=r"nowhere\.yaml: cannot be read \(No such file or directory\)"):
        load_keys(tmp_path / "nowhere.yaml")
