"""Sums that hold for any counts; test_metrics.py tests the lines of whole engines."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtest.engine.build import build_worker
from loadtest.engine.handover import Counters
from loadtest.engine.kv_metrics import sglang_lines, vllm_lines
from loadtest.engine.profiles import PROFILES

NOBODY: Any = None


def samples(lines: Any) -> Any:
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def engine(name: str) -> Any:
    return build_worker(PROFILES[name], NOBODY, observer=NOBODY)


@pytest.mark.parametrize("received", [0, 300])
def test_prompt_tokens_by_source_add_up(received: int) -> None:
    handover = Counters(received_tokens=received) if received else None
    found = samples(
        vllm_lines('m="x"', engine("dense-70b"), handover, prompt=1000, cached=500, host=200, pool=50)
    )
    by_source = {key: value for key, value in found.items() if key[0] == "vllm:prompt_tokens_by_source_total"}
    cached = {
        key: value for key, value in found.items() if key[0] == "vllm:prompt_tokens_cached_by_source_total"
    }

    assert sum(by_source.values()) == 1000
    assert sum(cached.values()) == 500 + received
    assert found[("vllm:external_prefix_cache_hits_total", "x")] == 200 + received
    assert ("vllm:nixl_num_failed_transfers_total", "x") in found or not received


def test_cached_tokens_by_source_add_up() -> None:
    found = samples(sglang_lines('m="x"', engine("dense-70b"), None, cached=500, host=200, pool=50))
    by_source = [value for key, value in found.items() if key[0] == "sglang:cached_tokens_total"]

    assert by_source == [300, 150, 50]
    assert ("sglang:swa_token_usage", "x") not in found


def test_every_rank_counts() -> None:
    found = samples(sglang_lines('m="x"', engine("mimo-v2-flash"), Counters(), cached=0, host=0, pool=0))

    assert found[("sglang:swa_token_usage", "x")] == 0
    assert found[("sglang:num_transfer_failed_reqs_total", "x")] == 0
