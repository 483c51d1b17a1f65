"""What engines say about themselves, as seen on the wire, and what else might come."""

from typing import Any

import pytest

from router.fleet.engine_info import (
    MODELS_MAX,
    ServedModel,
    cached_as,
    served_models,
    sglang_bootstrap_port,
    sglang_capacity_tokens,
    sglang_role,
    sglang_running_max,
    sglang_step_tokens,
    started_unix_ms,
    vllm_capacity_tokens,
)


def test_models_are_read_with_their_length_and_base() -> None:
    answer = {
        "object": "list",
        "data": [
            {"id": "tiny", "owned_by": "vllm", "root": "/models/tiny", "max_model_len": 8192},
            {"id": "tiny-sql", "object": "model", "owned_by": "vllm", "parent": "tiny"},
        ],
    }
    assert served_models(answer) == (
        ServedModel("tiny", 8192, "vllm", "/models/tiny"),
        ServedModel("tiny-sql", 0, "vllm", "tiny", "tiny"),
    )


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"data": None}, {"data": [None, 3, {}, {"id": ""}, {"id": 3}]}, "text", 3]
)
def test_unusable_model_lists_are_empty(answer: Any) -> None:
    assert served_models(answer) == ()


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"max_total_num_tokens": 400000}, 400000),
        ({"max_total_num_tokens": 400000, "dp_size": 8}, 3_200_000),
        ({"max_total_num_tokens": 400000, "dp_size": None}, 400000),
        ({"internal_states": [{"max_total_num_tokens": 5}]}, 5),
        ({"internal_states": ["x"]}, 0),
        ({"max_total_num_tokens": "many"}, 0),
        (None, 0),
    ],
)
def test_sglang_says_its_capacity_in_tokens(answer: Any, tokens: int) -> None:
    assert sglang_capacity_tokens(answer) == tokens


@pytest.mark.parametrize(
    ("answer", "requests"),
    [
        ({"max_running_requests": 64}, 64),
        (
            {
                "max_running_requests": None,
                "internal_states": [{"effective_max_running_requests_per_dp": 48}],
            },
            48,
        ),
        (
            {
                "max_running_requests": 64,
                "dp_size": 8,
                "internal_states": [{}, {"effective_max_running_requests_per_dp": 6}],
            },
            48,
        ),
        ({"max_running_requests": 64, "internal_states": ["x"]}, 64),
        ({"max_running_requests": None}, 0),
        ({"max_running_requests": -1}, 0),
        ([], 0),
        (None, 0),
    ],
)
def test_sglang_says_how_many_requests_it_runs_at_a_time(answer: Any, requests: int) -> None:
    assert sglang_running_max(answer) == requests


def test_vllm_says_its_capacity_in_blocks() -> None:
    """240 blocks of 32 tokens."""
    text = 'x 1\nvllm:cache_config_info{block_size="32",num_gpu_blocks="240",engine="0"} 1\n'
    assert vllm_capacity_tokens(text) == 7680
    assert vllm_capacity_tokens('vllm:cache_config_info{block_size="32",num_gpu_blocks="None"} 1') == 0
    assert vllm_capacity_tokens("") == 0


@pytest.mark.parametrize(
    ("said", "ranks", "tokens"), [("1730", 1, 1730), ("1730", 2, 3460), ("None", 2, 7680)]
)
def test_vllm_says_better_itself_what_a_rank_can_hold(said: str, ranks: int, tokens: int) -> None:
    """Of 240 blocks of 32 tokens, all ranks together, a Gemma 3 keeps most for windows."""
    lines = [f'vllm:num_requests_running{{model_name="m",engine="{rank}"}} 0.0' for rank in range(ranks)]
    config = f'block_size="32",num_gpu_blocks="240",kv_cache_size_tokens="{said}",engine="0"'
    lines.append(f"vllm:cache_config_info{{{config}}} 1")

    assert vllm_capacity_tokens("\n".join(lines)) == tokens


@pytest.mark.parametrize(
    ("line", "expected_ms"),
    [
        ("process_start_time_seconds 1.76370012325e+09", 1_763_700_123_250),
        ('process_start_time_seconds{pid="7"} 1763700123.25 1763700999000', 1_763_700_123_250),
        ("process_start_time_seconds\t1763700123", 1_763_700_123_000),
        ("process_start_time_seconds NaN", 0),
        ("process_start_time_seconds +Inf", 0),
        ("process_start_time_seconds 1e300", 0),
        ("process_start_time_seconds -5", 0),
        ("process_start_time_seconds soon", 0),
        ("process_start_time_seconds", 0),
        ("my_process_start_time_seconds 5", 0),
        ("process_start_time_seconds_total 5", 0),
        ("", 0),
    ],
)
def test_a_process_says_when_it_started(line: str, expected_ms: int) -> None:
    text = f"# TYPE process_start_time_seconds gauge\n{line}\nother 1\n"
    assert started_unix_ms(text) == expected_ms


@pytest.mark.parametrize(
    ("answer", "port"),
    [
        ({"disaggregation_bootstrap_port": 9123}, 9123),
        ({"disaggregation_bootstrap_port": None}, 0),
        ({"disaggregation_bootstrap_port": 70_000}, 0),
        ({}, 0),
        (None, 0),
    ],
)
def test_sglang_says_where_decode_workers_come(answer: Any, port: int) -> None:
    assert sglang_bootstrap_port(answer) == port


@pytest.mark.parametrize(
    ("answer", "role"),
    [
        ({"disaggregation_mode": "null"}, "plain"),
        ({"disaggregation_mode": "prefill", "internal_states": [{}, 7]}, "prefill"),
        (
            {"disaggregation_mode": "prefill", "internal_states": [{"disaggregation_mode": "decode"}]},
            "decode",
        ),
        ({"disaggregation_mode": "other"}, ""),
        ({"disaggregation_mode": ["decode"]}, ""),
        ({"internal_states": {}}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_the_scheduler_knows_the_role_of_an_engine_better_than_its_start(answer: Any, role: str) -> None:
    assert sglang_role(answer) == role


def test_other_names_of_a_model_are_cached_as_the_first_and_adapters_as_themselves() -> None:
    """As vLLM lists them: names of the model itself have its path as root, adapters their base as parent."""
    models = served_models(
        {
            "data": [
                {"id": "/models/m", "root": "/models/m", "parent": None},
                {"id": "m", "root": "/models/m", "parent": None},
                {"id": "adapter", "root": "/adapters/a", "parent": "/models/m"},
                {"id": "second", "root": "/adapters/b", "parent": "/models/m"},
                {"id": "plain"},
            ]
        }
    )
    names = ["/models/m", "m", "adapter", "second", "plain", "unknown"]
    assert [cached_as(models, name) for name in names] == [
        *("/models/m", "/models/m", "adapter", "second", "plain"),
        None,
    ]


@pytest.mark.parametrize(
    "number", [2**53, 2**64, 10**400, True, -1, 1.5, "7"], ids=lambda number: str(number)[:20]
)
def test_numbers_beyond_their_bounds_are_not_said(number: object) -> None:
    info = {
        "max_total_num_tokens": number,
        "max_running_requests": number,
        "chunked_prefill_size": number,
        "disaggregation_bootstrap_port": number,
    }
    assert sglang_capacity_tokens(info) == sglang_running_max(info) == sglang_step_tokens(info) == 0
    assert sglang_bootstrap_port(info) == 0
    assert sglang_capacity_tokens({"max_total_num_tokens": 10, "dp_size": number}) == 10
    assert served_models({"data": [{"id": "m", "max_model_len": number}]}) == (ServedModel("m"),)


def test_products_beyond_their_bounds_are_not_said() -> None:
    assert sglang_capacity_tokens({"max_total_num_tokens": 2**30, "dp_size": 4096}) == 0
    states = [{"effective_max_running_requests_per_dp": 2**30}]
    assert sglang_running_max({"dp_size": 4096, "internal_states": states}) == 0
    for size, count in (("16", "9" * 400), ("2" * 9, "2" * 9), ("²", "1"), ("-1", "-1")):
        labels = f'block_size="{size}",num_gpu_blocks="{count}"'
        assert vllm_capacity_tokens(f"vllm:cache_config_info{{{labels}}} 1") == 0


def test_models_that_cannot_be_written_are_left_out_and_lists_end() -> None:
    ids = ["\ud800", "x" * 257, "a\nb", "", 7, None, "good"]
    answer = {"data": [{"id": each, "owned_by": "\udfff", "root": {}, "parent": "\n"} for each in ids]}
    assert served_models(answer) == (ServedModel("good"),)
    assert len(served_models({"data": [{"id": f"m{number}"} for number in range(50_000)]})) == MODELS_MAX
