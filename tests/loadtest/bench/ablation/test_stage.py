"""Settings of the gateway of an arm."""

from pathlib import Path

from loadtest.bench.ablation.arms import ARMS
from loadtest.bench.ablation.stage import Stage
from loadtest.vllm import VllmEngine

STAGE = Stage("gemma3", [VllmEngine("http://a"), VllmEngine("http://b")], Path("models/gemma3"))


def test_every_arm_knows_the_same_workers_blocks_and_windows() -> None:
    for arm in ARMS:
        flags = STAGE.gateway_flags(arm)
        assert flags[flags.index("--worker-urls") + 1 :][:2] == ["http://a", "http://b"]
        assert flags[flags.index("--block-tokens") + 1] == "32"
        assert '"window_tokens": 64' in flags[flags.index("--models") + 1]


def test_an_arm_knows_token_ids_or_events_only_if_it_says_so() -> None:
    flags = {arm.key: STAGE.gateway_flags(arm) for arm in ARMS}

    assert [key for key in flags if "models/gemma3" in "".join(flags[key])] == ["history-exact", "events"]
    assert [key for key in flags if "--kv-events" in flags[key]] == ["events"]
    assert flags["round-robin"][:2] == ["--policy", "round_robin"]
