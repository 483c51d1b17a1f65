"""The tables of flags are sound."""

import re

from router.catalogue import CATALOGUE
from router.peers import ANSWERS, FLAGS, ROUTERS, translated
from router.peers.rows import PeerFlag, rows, taken

OURS = {row.flag: row for row in CATALOGUE.values()}


def test_a_table_is_groups_of_flags_that_share_a_sentence() -> None:
    text = """
a, b | this goes
| on here
    --one V --none
    --many V...
c | that
    --last
"""
    assert list(rows(text, "accepted")) == [
        PeerFlag("--one", ("a", "b"), "one", "accepted", "this goes on here"),
        PeerFlag("--none", ("a", "b"), "none", "accepted", "this goes on here"),
        PeerFlag("--many", ("a", "b"), "many", "accepted", "this goes on here"),
        PeerFlag("--last", ("c",), "none", "accepted", "that"),
    ]


def test_a_flag_is_taken_as_a_flag_or_as_an_option_of_a_policy() -> None:
    flag, option = taken("a | --ours\n    --theirs V\na | name=\n    --their-name V")
    assert (flag.ours, flag.says) == ("--ours", "--ours")
    assert (option.ours, option.says) == ("name=", "--policy-options name=VALUE")


def test_tables_name_flags_of_ours_that_exist() -> None:
    keys = {flag: row.key for flag, row in OURS.items()}
    for row in (*FLAGS.values(), *ANSWERS.values()):
        named = set(re.findall(r"--[a-z][a-z0-9-]+", row.says)) - {
            "--buckets",
            "--served-model-name",
            "--config",
        }
        assert named <= keys.keys() | {"--policy-options"}, row
        if row.ours and not row.ours.endswith("="):
            assert row.ours in keys
    assert not (FLAGS.keys() | ANSWERS.keys()) & keys.keys()
    assert {peer for row in FLAGS.values() for peer in row.peers} == set(ROUTERS)
    assert translated({}, {}, {}, keys).note == ""
