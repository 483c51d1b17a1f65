from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtest.engine.faults import Fault
from router.engines import DIALECTS


def samples(text: str) -> Any:
    return {
        (
            sample.name,
            *sorted(set(sample.labels.items()) - {("engine", "0"), ("model_name", "emulated")}),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(start: Any, dialect: str) -> Any:
    _, client = await start(dialect=dialect, block_tokens=16, cache_tokens=16_000)
    for _ in range(2):
        body = {"prompt": [1] * 161, "max_tokens": 10, "ignore_eos": True}
        await client.post("/v1/completions", json=body)
    return samples((await client.get("/metrics")).text)


async def test_sglang_metrics_have_sglang_names(start: Any) -> None:
    found = await scrape(start, "sglang")

    assert found[("sglang:num_running_reqs",)] == 0
    assert found[("sglang:num_queue_reqs",)] == 0
    assert found[("sglang:token_usage",)] == 0
    assert found[("sglang:max_total_num_tokens",)] == 16_000
    assert found[("sglang:cache_hit_rate",)] == pytest.approx(160 / 322)
    assert found[("sglang:prompt_tokens_total",)] == 322
    assert found[("sglang:generation_tokens_total",)] == 20
    assert found[("sglang:time_to_first_token_seconds_count",)] == 2
    assert found[("sglang:inter_token_latency_seconds_count",)] == 18


async def test_vllm_metrics_have_vllm_names(start: Any) -> None:
    found = await scrape(start, "vllm")

    assert found[("vllm:num_requests_running",)] == 0
    assert found[("vllm:num_requests_waiting",)] == 0
    assert found[("vllm:kv_cache_usage_perc",)] == 0
    assert found[("vllm:prefix_cache_queries_total",)] == 322
    assert found[("vllm:prefix_cache_hits_total",)] == 160
    assert found[("vllm:prompt_tokens_by_source_total", ("source", "local_compute"))] == 162
    assert found[("vllm:request_success_total", ("finished_reason", "length"))] == 2
    assert found[("vllm:e2e_request_latency_seconds_count",)] == 2
    config = [name for name in found if name[0] == "vllm:cache_config_info"]
    assert ("block_size", "16") in config[0]
    assert ("num_gpu_blocks", "1000") in config[0]


async def test_vllm_has_a_line_for_each_rank_from_which_its_capacity_follows(start: Any) -> None:
    _, client = await start(dialect="vllm", block_tokens=16, cache_tokens=16_000, dp_ranks=2)
    page = (await client.get("/metrics")).text

    assert page.count("\nvllm:num_requests_running{") == page.count("\nvllm:kv_cache_usage_perc{") == 2
    assert DIALECTS["vllm"].capacity_tokens(page) == 16_000


async def test_vllm_adds_up_the_blocks_of_its_ranks_but_not_their_tokens(start: Any) -> None:
    _, client = await start(dialect="vllm", block_tokens=16, cache_tokens=16_000, dp_ranks=2)
    found = samples((await client.get("/metrics")).text)

    (config,) = [name for name in found if name[0] == "vllm:cache_config_info"]
    assert {("num_gpu_blocks", "1000"), ("kv_cache_size_tokens", "8000")} < set(config)


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_another_process_has_another_start_time(start: Any, dialect: str) -> None:
    engine, client = await start(dialect=dialect)
    client.headers["connection"] = "close"
    times = []
    for _ in range(2):
        found = samples((await client.get("/metrics")).text)
        times.append(found[("process_start_time_seconds",)])
        assert samples((await client.get("/metrics")).text) == found
        engine.inject(Fault("crash"))
        engine.mend()
    assert 1_700_000_000 < times[0] < times[1]


async def test_requests_in_the_engine_are_seen_while_they_run(start: Any) -> None:
    """The one that decodes holds its prompt and its answer; the other waits for the only slot."""
    _, client = await start(dialect="vllm", max_running=1, tpot_ms=1e6, cache_tokens=1000)
    body = {"prompt": [1] * 400, "max_tokens": 100, "ignore_eos": True, "stream": True}
    async with (
        client.stream("POST", "/v1/completions", json=body) as first,
        client.stream("POST", "/v1/completions", json=body),
    ):
        await anext(first.aiter_lines())
        found = samples((await client.get("/metrics")).text)

    assert found[("vllm:num_requests_running",)] == 1
    assert found[("vllm:num_requests_waiting",)] == 1
    assert found[("vllm:kv_cache_usage_perc",)] == 0.5


async def test_sglang_tells_where_cached_tokens_came_from(start: Any) -> None:
    """Room on the device for two prompts of 640 tokens, and on the host for all of them."""
    _, client = await start(block_tokens=64, cache_tokens=1600, host_tokens=16_000, pool_tokens=160_000)
    for number in (1, 2, 3, 4, 1, 1):
        body = {"prompt": [number] * 640, "max_tokens": 2, "ignore_eos": True}
        await client.post("/v1/completions", json=body)
    found = samples((await client.get("/metrics")).text)

    assert found[("sglang:cached_tokens_total", ("cache_source", "host"))] == 576
    assert found[("sglang:cached_tokens_total", ("cache_source", "device"))] == 576
    assert found[("sglang:cached_tokens_total", ("cache_source", "storage_MooncakeStore"))] == 0
    assert found[("sglang:load_back_tokens_total",)] == 576
    assert found[("sglang:evicted_tokens_total",)] > 0
    assert 0 < found[("sglang:hicache_host_used_tokens",)] <= found[("sglang:hicache_host_total_tokens",)]
    assert found[("sglang:backuped_tokens_total", ("storage_backend", "mooncake"))] == 4 * 640


async def test_sglang_tells_what_came_from_the_shared_pool(start: Any) -> None:
    """A host tier of two prompts forgets the first of eight, and fetches it again."""
    _, client = await start(block_tokens=64, cache_tokens=1600, host_tokens=3200, pool_tokens=160_000)
    for number in (*range(1, 9), 1):
        body = {"prompt": [number] * 640, "max_tokens": 2, "ignore_eos": True}
        await client.post("/v1/completions", json=body)
    found = samples((await client.get("/metrics")).text)

    assert found[("sglang:cached_tokens_total", ("cache_source", "storage_MooncakeStore"))] == 576
    assert found[("sglang:prefetched_tokens_total", ("storage_backend", "mooncake"))] == 576
    rank = (("dp_rank", "0"), ("storage_backend", "mooncake"))
    assert found[("sglang:prefetch_pgs_sum", *rank)] == 9
    assert found[("sglang:prefetch_bandwidth_count", *rank)] == 1


async def test_a_window_pool_has_a_usage_of_its_own(start: Any) -> None:
    _, plain = await start()
    _, hybrid = await start(profile="mimo-v2-flash", models=("emulated",), tpot_ms=1e6, max_model_len=4096)
    body = {"prompt": [1] * 1000, "max_tokens": 100, "ignore_eos": True, "stream": True}
    async with hybrid.stream("POST", "/v1/completions", json=body) as stream:
        await anext(stream.aiter_lines())
        found = samples((await hybrid.get("/metrics")).text)

    assert found[("sglang:swa_token_usage",)] > 0
    assert found[("sglang:token_usage",)] == max(
        found[("sglang:swa_token_usage",)], found[("sglang:full_token_usage",)]
    )
    assert ("sglang:swa_token_usage",) not in samples((await plain.get("/metrics")).text)
