"""The settings that the fold gets."""

from policies import PROFILES, LengthBuckets
from router.process.fleet_rules import fleet_rules
from router.settings import Settings


def test_the_fold_is_told_what_counts_in_it() -> None:
    settings = Settings.model_validate(
        {
            "server": {"request_timeout_s": 100},
            "placement": {
                "prefill_tokens_per_s": 5_000,
                "congestion_max": 3,
                "length_buckets": ["1K", "2K"],
                "copy_horizon_s": 300,
            },
            "queue": {"classes": {"gold": 3, "tin": 1}, "default_class": "tin", "fairness_quantum_s": 2},
        }
    )
    rules = fleet_rules(settings, {"acme": 7.0}.__getitem__, {"acme": 0.5}.get)
    assert rules.default_model.b_s == 1 / 5_000
    assert rules.default_model.a_s == PROFILES["default"].a_s
    assert (rules.congestion_max_per_s, rules.lifetime_s_max, rules.quantum_s) == (3, 200, 2)
    assert rules.buckets == LengthBuckets((1_024, 2_048))
    assert rules.cache_share_of("acme") == 0.5
    assert rules.copy_horizon_s == 300
    assert (rules.weight_of("gold"), rules.weight_of("tin/acme")) == (3, 7)
