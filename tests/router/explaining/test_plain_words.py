"""Texts for operators; `router.admin.link_view`'s tests cover the reason for local prefill."""

from math import inf
from typing import Any

import pytest

from policies import Policy, Reason, make_policy
from router.explaining.plain_words import REASONS, Candidate, listed, lost_because, seconds

COST = make_policy("expected_cost")


def candidate(worker_id: str = "other", **known: Any) -> Candidate:
    """An idle candidate without costs, except those that a test names."""
    fields: dict[str, Any] = dict.fromkeys(Candidate.__struct_fields__, 0)
    fields |= {"worker_id": worker_id, "link": "", "lost_because": "", **known}
    if "cost" not in known:
        fields["cost"] = fields["queue_s"] + fields["work_s"] + fields["later_s"]
    return Candidate(**fields)


def lost(one: Candidate, winner: Candidate, policy: Policy = COST) -> str:
    return lost_because(one, winner, policy)


def test_seconds_are_set_against_seconds() -> None:
    winner = candidate("best", service_s=0.8, work_s=0.8, uncached_tokens=12_000)
    one = candidate(queue_s=1.1, service_s=0.12, work_s=0.12, uncached_tokens=1800)
    assert lost(one, winner) == (
        "it would be 0.42 s later: 1.10 s of queue against 0.68 s of prefill (10,200 uncached tokens) saved"
    )


def test_what_a_copy_would_save_others_is_a_reason() -> None:
    winner = candidate("best", service_s=0.8, work_s=0.8, saved_s=2.0, cost=-1.2)
    one = candidate(queue_s=0.4, cost=0.4)
    assert "2.00 s that a copy of a hot prefix would save others" in lost(one, winner)


def test_what_others_lose_is_a_price_and_no_delay() -> None:
    winner = candidate("best", queue_s=0.2)
    one = candidate(queue_s=0.1, stall_s=0.3, work_s=0.3, later_s=0.05)
    assert lost(one, winner) == (
        "it would cost 0.25 s more: 0.30 s that requests decoding there lose and 50 ms that waiting and "
        "later requests lose against 0.10 s of queue saved"
    )


def test_where_nothing_is_saved_nothing_is_said_of_it() -> None:
    assert lost(candidate(transfer_s=0.02, work_s=0.02), candidate("best")) == (
        "it would be 20 ms later: 20 ms of transfer"
    )
    assert lost(candidate(spill_s=1.5, work_s=1.5), candidate("best")) == (
        "it would cost 1.50 s more: 1.50 s for leaving the length bucket"
    )


def test_differences_too_small_for_a_word_are_left_to_the_figures() -> None:
    assert lost(candidate(queue_s=1e-5), candidate("best")) == "it would be 0.01 ms later"


def test_a_tie_names_who_got_it() -> None:
    assert lost(candidate(queue_s=1.0), candidate("best", queue_s=1.0)) == (
        "it costs the same; hashing of the prompt gave it to best"
    )


def test_scores_are_set_against_scores_and_translated_into_seconds() -> None:
    policy = make_policy("least_load")
    winner = candidate("best", cost=2.0, ttft_s=0.9)
    assert lost(candidate(cost=5.0, ttft_s=0.2), winner, policy) == (
        "5 against 2 of best (requests in flight; the least wins); by the service-time model it would answer "
        "0.70 s sooner"
    )
    assert lost(candidate(cost=5.0, ttft_s=0.9), winner, policy).endswith("the least wins)")


@pytest.mark.parametrize(
    ("policy", "words"),
    [("prefix_hash", "it is full"), ("power_of_two", "it is not one of the two that were drawn")],
)
def test_who_is_not_considered_is_told_why(policy: str, words: str) -> None:
    assert lost(candidate(cost=inf), candidate("best"), make_policy(policy)).startswith(words)


def test_every_reason_has_words() -> None:
    assert REASONS.keys() == set(Reason)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234.50 s"),
        (0.42, "0.42 s"),
        (0.0995, "0.10 s"),
        (0.0994, "99.4 ms"),
        (1.5e-5, "0.015 ms"),
        (0.0, "0 s"),
    ],
)
def test_times_are_told_to_what_matters(value: float, text: str) -> None:
    assert seconds(value) == text


def test_lists_end_with_and() -> None:
    assert [listed("a"), listed("ab"), listed("abc")] == ["a", "a and b", "a, b and c"]
