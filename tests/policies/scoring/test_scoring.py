import pytest

from policies.scoring import DEFAULT_POLICY, POLICIES, make_policy


def test_every_name_of_the_design_makes_a_policy() -> None:
    names = "expected_cost min_ttft affinity kv_cost lmetric cache_aware prefix_hash consistent_hash "
    names += "power_of_two least_load round_robin random"

    assert list(POLICIES) == names.split()
    assert all(make_policy(name).name == name for name in POLICIES)
    assert DEFAULT_POLICY == "expected_cost"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown policy 'fastest'; known are: expected_cost, min_ttft, "):
        make_policy("fastest")


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValueError, match="policy 'expected_cost' has no option 'kappa'; it has: none"):
        make_policy("expected_cost", {"kappa": 1.0})


def test_only_policies_that_look_at_matches_use_the_cache() -> None:
    uses_cache = [name for name in POLICIES if make_policy(name).uses_cache]

    assert uses_cache == ["expected_cost", "min_ttft", "affinity", "kv_cost", "lmetric", "cache_aware"]
