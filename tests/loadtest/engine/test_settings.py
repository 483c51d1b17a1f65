from dataclasses import astuple, replace
from typing import Any

import pytest

from loadtest.engine.handover import HandoverSettings
from loadtest.engine.profiles import PROFILES
from loadtest.engine.settings import EngineSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block_tokens": 0}, "block_tokens must be at least 1"),
        ({"cache_tokens": 8, "block_tokens": 16}, "cache_tokens must be at least 16"),
        ({"speed": 0}, "speed must be above 0"),
        ({"prefill_tokens_per_s": float("nan")}, "prefill_tokens_per_s must be above 0"),
        ({"models": ()}, "models must name"),
        ({"pool_tokens": 1000}, "pool_tokens needs host_tokens"),
        (
            {"pool_tokens": 9000, "host_tokens": 5000, "cache_tokens": 5000},
            "pool_tokens needs host_tokens above cache_tokens",
        ),
        ({"profile": "abacus"}, "profile must be one of dense-70b"),
        (
            {"profile": "mimo-v2-flash", "host_tokens": 1, "dialect": "vllm"},
            "no host tier is modelled for sliding_window by vllm",
        ),
        ({"dp_ranks": 4, "chunk_tokens": 2}, "chunk_tokens must be at least dp_ranks"),
        ({"dp_ranks": 4, "max_running": 2}, "max_running must be at least 4"),
    ],
)
def test_what_cannot_be_modelled_is_refused_with_a_sentence(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineSettings(**wrong)


def test_the_longest_context_fits_both_the_model_and_the_cache() -> None:
    assert EngineSettings(cache_tokens=1000, max_model_len=4096).context_tokens_max == 1000
    assert EngineSettings(cache_tokens=9000, max_model_len=4096).context_tokens_max == 4096


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_settings_of_a_profile_build_the_engine_of_the_profile(name: str) -> None:
    """Fields with a setting come back unchanged but for rounding; the rest is the profile's own."""
    built, profile = EngineSettings.of(name).engine(), PROFILES[name]
    for each in ("prefill", "decode"):
        prices, expected = (astuple(getattr(one, each))[:4] for one in (built, profile))
        assert prices == pytest.approx(expected, rel=1e-3)

    assert replace(built, prefill=profile.prefill, decode=profile.decode) == profile


def test_a_setting_changes_an_engine_of_a_profile() -> None:
    """Half of the cache is half of its window pool too; one rank more has a share less."""
    pro = PROFILES["mimo-v2.5-pro"]
    small = EngineSettings.of("mimo-v2.5-pro", cache_tokens=pro.rules.full_tokens, speed=10.0).engine()
    wide = EngineSettings.of("mimo-v2.5-pro", dp_ranks=4).engine()

    assert small.rules.full_tokens == pro.rules.full_tokens // 2
    assert small.rules.swa_tokens == pytest.approx(pro.rules.swa_tokens / 2, abs=1)
    assert small.prefill.prompt_s(1000, 0) == pytest.approx(pro.prefill.prompt_s(1000, 0) / 10)
    assert wide.rules.full_tokens == pro.rules.full_tokens // 2


def test_without_a_profile_an_engine_attends_to_everything() -> None:
    engine = EngineSettings(tpot_ms=20.0, tpot_batch=10, prefill_base_ms=10.0).engine()

    assert (engine.rules.attention, engine.dp_ranks, engine.interleave) == ("full", 1, "apart")
    assert engine.decode.stretch(10, 1_000_000).seconds(1) == pytest.approx(0.040)
    assert engine.prefill.prompt_s(20_000, 0) == pytest.approx(0.010 + 1 + 1 / 14)


def test_lower_tiers_are_as_large_as_they_are_told() -> None:
    """Over all ranks, like the cache; the window pool keeps the proportion."""
    engine = EngineSettings.of("mimo-v2.5-pro", cache_tokens=100_000, host_tokens=400_000).engine()
    assert engine.host_tier is not None

    assert (engine.host_tier.host_tokens, engine.host_tier.host_ratio) == (200_000, 4.0)
    assert EngineSettings().engine().host_tier is None


@pytest.mark.parametrize(
    ("dialect", "protocol"), [("vllm", "sglang"), ("sglang", "nixl"), ("sglang", "mooncake")]
)
def test_a_hand_over_of_the_other_engine_is_refused(dialect: Any, protocol: Any) -> None:
    with pytest.raises(ValueError, match="no hand-over"):
        EngineSettings(dialect=dialect, handover=HandoverSettings(protocol=protocol, part="prefill"))
