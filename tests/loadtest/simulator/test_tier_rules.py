"""Rules of memory below the device, read from a command line or a file."""

from dataclasses import fields
from pathlib import Path

import pytest

from loadtest.engine.kv.l3 import Absence, L3Settings
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.simulator.tier_rules import KEYS, PLAIN, PUBLISHED, read_tier_rules

SIZES = {"host_ratio", "host_tokens", "memory_tokens", "virtual_nodes"}


def test_keys_are_all_fields_but_sizes() -> None:
    """A field that no user could reach fails here."""
    names = {field.name for settings in (HiCacheSettings, L3Settings) for field in fields(settings)}

    assert set(KEYS) == names - SIZES


def test_the_page_explains_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pools.md").read_text()

    assert [key for key in (*KEYS, *PUBLISHED) if f"`{key}`" not in page] == []


def test_a_published_pool_with_changes() -> None:
    rules = read_tier_rules("mooncake, ttl_s=600, write_policy=write_back,keep_alive=yes")

    assert dict(rules.host) == {"keep_alive": True, "write_policy": "write_back"}
    assert dict(rules.pool) == {"kind": "pooled", "ttl_s": 600.0}
    assert read_tier_rules("gcache") == read_tier_rules("") == PLAIN
    assert PUBLISHED["gcache"] == {}


def test_rules_are_told_as_they_can_be_given() -> None:
    rules = read_tier_rules(
        "keep_alive=no,absences=2@600-900:kept 3@5-,tensor_parallel=4 8,ttl_s=1.5,nodes=4"
    )

    assert (
        str(rules)
        == "keep_alive=no, absences=2@600-900:kept 3@5-:lost, tensor_parallel=4 8, ttl_s=1.5, nodes=4"
    )
    assert read_tier_rules(str(rules)) == rules


def test_a_file_says_the_same_as_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(
        "disk_tokens: 64M\nabsences: [2@600-900, '3@5-:kept']\nkeep_alive: false\ntensor_parallel: 4 8\n"
    )

    rules = read_tier_rules(f"{file},rank_loss_ratio=0.01")

    assert rules == read_tier_rules(
        "disk_tokens=64M,absences=2@600-900 3@5-:kept,keep_alive=no,tensor_parallel=4 8,rank_loss_ratio=0.01"
    )
    assert dict(rules.pool)["absences"] == (Absence(2, 600.0, 900.0), Absence(3, 5.0, how="kept"))
    assert dict(rules.pool)["disk_tokens"] == 64 << 20
    assert dict(rules.pool)["tensor_parallel"] == (4, 8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nobody", "no pool by name \\(gcache, mooncake\\) and no file"),
        ("ttl=5", "unknown key 'ttl'"),
        ("gcache,fast", "'fast' is not KEY=VALUE"),
        ("kind=heap", "none of grouped, pooled"),
        ("keep_alive=perhaps", "neither yes nor no"),
        ("ttl_s=nan", "not a number from 0 to 1e\\+09"),
        ("ttl_s=inf", "not a number"),
        ("nodes=0", "not a number from 1 to 1024"),
        ("nodes=9" + "9" * 400, "not a number"),
        ("absences=2@5", "not NODE@FROM-TO"),
        ("absences=2@9-5", "leave at 9 s and be back at 5 s"),
        ("absences=8@9-", "beyond 0 to 7"),
        ("mooncake,disk_tokens=1M", "no disk tier"),
        ("tensor_parallel=0", "not a number from 1"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_tier_rules(text)


@pytest.mark.parametrize(
    "content", [b"a: [", b"- 1\n", b"\xff\xfe", b"ttl_s: {a: 1}", b"a: &a [1]\nb: [*a, *a]", b""]
)
def test_a_file_of_another_form_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_bytes(content)

    with pytest.raises(ValueError, match=r"not YAML|more than lines|unknown key"):
        read_tier_rules(str(file))
