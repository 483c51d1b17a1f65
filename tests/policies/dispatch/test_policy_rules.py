"""The chosen policies and their options."""

import pytest

from policies import POLICIES, PolicyRules


def test_an_option_that_the_policy_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="has no option"):
        PolicyRules(policy="round_robin", policy_options={"match_weight": 1.0})


def test_each_policy_takes_the_options_that_it_has() -> None:
    rules = PolicyRules(
        prefill_policy="cache_aware", decode_policy="power_of_two", policy_options={"cache_threshold": 0.5}
    )
    assert rules.options_of("cache_aware") == {"cache_threshold": 0.5}
    assert rules.options_of("power_of_two") == rules.options_of("decode_cost") == {}


def test_an_option_out_of_range_is_refused_for_any_of_the_policies() -> None:
    with pytest.raises(ValueError, match="cache_threshold"):
        PolicyRules(decode_policy="cache_aware", policy_options={"cache_threshold": 7})


@pytest.mark.parametrize("policy", ["decode_cost", *POLICIES])
def test_decode_has_the_same_policies_and_one_of_its_own(policy: str) -> None:
    assert PolicyRules(decode_policy=policy).decode_policy == policy


def test_options_of_a_shadow_policy_need_a_shadow_policy() -> None:
    assert PolicyRules(shadow_policy="round_robin").shadow_ratio == 0.1
    with pytest.raises(ValueError, match="need a shadow_policy"):
        PolicyRules(shadow_policy_options={"match_weight": 1.0})
