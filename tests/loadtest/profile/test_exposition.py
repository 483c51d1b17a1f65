"""Both engines' counters are read into one form."""

import math

from loadtest.profile.exposition import read_counts, read_labels, read_samples

SGLANG = """
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_sum{model_name="m"} 12.5
sglang:time_to_first_token_seconds_count{model_name="m"} 10
sglang:queue_time_seconds_sum{model_name="m"} 2.5
sglang:prompt_tokens_total{model_name="m"} 5000
sglang:cached_tokens_total{model_name="m"} 1000
sglang:inter_token_latency_seconds_sum{model_name="m"} 8
sglang:inter_token_latency_seconds_count{model_name="m"} 400
sglang:num_running_reqs{model_name="m",dp_rank="0"} 3
sglang:num_running_reqs{model_name="m",dp_rank="1"} 2
sglang:num_queue_reqs{model_name="m"} 1
"""

VLLM = """
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 10
vllm:request_prefill_time_seconds_count{engine="0",model_name="m"} 10
vllm:prompt_tokens_total{engine="0",model_name="m"} 5000
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1000
vllm:inter_token_latency_seconds_sum{engine="0"} 8
vllm:inter_token_latency_seconds_count{engine="0"} 400
vllm:num_requests_running{engine="0"} 5
vllm:num_requests_waiting{engine="0"} 1
vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="2048",x="a\\"b"} 1
"""


def test_both_say_the_same() -> None:
    assert read_counts(SGLANG) == read_counts(VLLM)
    counts = read_counts(VLLM)
    assert (counts.requests, counts.prefill_s, counts.running) == (10, 10.0, 5.0)


def test_what_came_between_two_readings() -> None:
    counts = read_counts(VLLM)
    between = read_counts(
        VLLM.replace(" 400", " 500").replace('running{engine="0"} 5', 'running{engine="0"} 7')
    ).since(counts)
    assert (between.gaps, between.requests, between.running) == (100, 0, 6.0)


def test_what_is_not_exported_is_unknown() -> None:
    counts = read_counts("other_metric 3\nvllm:prompt_tokens_total NaN\nbroken{ 5\n")
    assert math.isnan(counts.prompt_tokens)
    assert math.isnan(counts.prefill_s)


def test_labels_of_an_info_metric() -> None:
    assert read_labels(VLLM, "vllm:cache_config_info")["num_gpu_blocks"] == "2048"
    assert read_labels(VLLM, "none") == {}
    assert read_samples('a 1\na{b="c"} 2\n') == {"a": 3.0}
