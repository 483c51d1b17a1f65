"""Policies with options, as they are written on a command line."""

import pytest

from loadtest.simulator.contenders import Contender, read_contenders
from policies import POLICIES


def test_options_follow_their_policy() -> None:
    read = read_contenders(
        "expected_cost, affinity:match_weight=2,cache_aware:cache_threshold=0.5:balance_abs_threshold=4"
    )

    assert read == [
        Contender("expected_cost"),
        Contender("affinity", (("match_weight", 2.0),)),
        Contender("cache_aware", (("cache_threshold", 0.5), ("balance_abs_threshold", 4.0))),
    ]
    assert [one.label for one in read] == [
        "expected_cost",
        "affinity match_weight=2",
        "cache_aware cache_threshold=0.5 balance_abs_threshold=4",
    ]


def test_all_is_the_registry() -> None:
    assert [one.label for one in read_contenders("all")] == list(POLICIES)


def test_one_policy_may_compete_with_itself_under_other_options() -> None:
    assert len(read_contenders("all,affinity:match_weight=2")) == len(POLICIES) + 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fastest", "unknown policy 'fastest'; known are: expected_cost"),
        ("", "unknown policy ''"),
        ("affinity:weight=2", "it has: match_weight"),
        ("affinity:match_weight", "as in affinity:match_weight=2"),
        ("affinity:match_weight=much", "as in affinity:match_weight=2"),
        ("affinity:match_weight=-1", "must be at least 0"),
        ("random,random", "'random' is there twice"),
        ("all,random", "'random' is there twice"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_right(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_contenders(text)


def test_options_are_handed_on_by_name() -> None:
    assert read_contenders("affinity:match_weight=2")[0].options == {"match_weight": 2.0}
