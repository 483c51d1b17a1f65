"""SGLang's answers as seen on the wire, and other possible ones.

`tests/router/pairs/test_role_planner.py` tests its switches of roles.
"""

from typing import Any

import msgspec
import pytest

from router.engines import Description
from router.engines.sglang import describe, event_sources
from router.engines.sources import Source

URL = "http://10.0.0.7:8000"


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
def test_it_says_its_capacity_in_tokens(answer: Any, tokens: int) -> None:
    assert describe(answer, "").capacity_tokens == tokens


HOST = {"max_total_num_tokens": 100_000, "enable_hierarchical_cache": True}
STATE = {"memory_usage": {"kvcache": 10.0, "token_capacity": 100_000}}
COUNTED = 'sglang:hicache_host_total_tokens{model_name="m",tp_rank="0"} 150000.0\n'
RANKED = "".join(
    f'sglang:hicache_host_total_tokens{{tp_rank="{tp}",dp_rank="{dp}"}} 2e5\n'
    for dp in (0, 1)
    for tp in (0, 1)
)


@pytest.mark.parametrize(
    ("answer", "metrics", "tokens"),
    [
        (HOST | {"enable_hierarchical_cache": False}, COUNTED, 0),
        ({"max_total_num_tokens": 100_000, "hicache_ratio": 2.0}, "", 0),
        (HOST, "", 200_000),
        (HOST | {"hicache_ratio": None}, "", 200_000),
        (HOST | {"hicache_ratio": 4.0, "hicache_size": 0}, "", 400_000),
        (HOST | {"hicache_ratio": 4.0, "dp_size": 2}, "", 800_000),
        (HOST | {"hicache_ratio": 4.0, "hicache_write_policy": "write_through"}, "", 400_000),
        (HOST | {"hicache_ratio": 4.0, "hicache_write_policy": "write_back"}, "", 500_000),
        (HOST | {"hicache_host_memory_mode": "cache"}, "", 200_000),
        (HOST | {"hicache_host_memory_mode": "buffer_only"}, COUNTED, 0),
        (HOST | {"hicache_size": 30, "internal_states": [STATE]}, "", 279_397),
        (HOST | {"hicache_size": 30, "internal_states": [STATE], "dp_size": 2}, "", 558_794),
        (HOST | {"hicache_size": 30}, "", 0),
        (HOST | {"hicache_size": 30}, COUNTED, 150_000),
        (HOST, COUNTED, 150_000),
        (HOST | {"dp_size": 2}, RANKED, 400_000),
        (HOST, "sglang:hicache_host_total_tokens many\n", 200_000),
        (HOST, "sglang:hicache_host_total_tokens nan\n", 200_000),
        (HOST, "sglang:hicache_host_total_tokens -5\n", 200_000),
        (HOST | {"hicache_ratio": "2"}, "", 0),
        (HOST | {"hicache_ratio": -2.0}, "", 0),
        (HOST | {"hicache_ratio": 1e300}, "", 0),
        (HOST | {"hicache_ratio": True, "hicache_size": "x"}, "", 100_000),
        ({"enable_hierarchical_cache": True}, COUNTED, 0),
    ],
)
def test_it_says_what_its_host_memory_offers(answer: Any, metrics: str, tokens: int) -> None:
    """30 GB of KV that takes 10 GiB for 100,000 tokens; a rank counts once, however many processes it has."""
    assert describe(answer, metrics).host_tokens == tokens


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
def test_it_says_how_many_requests_it_runs_at_a_time(answer: Any, requests: int) -> None:
    assert describe(answer, "").running_max == requests


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
def test_it_says_where_decode_workers_come(answer: Any, port: int) -> None:
    assert describe(answer, "").bootstrap_port == port


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
    assert describe(answer, "").role == role


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
    assert describe(info, "") == Description()
    assert describe({"max_total_num_tokens": 10, "dp_size": number}, "").capacity_tokens == 10


def test_products_beyond_their_bounds_are_not_said() -> None:
    assert describe({"max_total_num_tokens": 2**30, "dp_size": 4096}, "").capacity_tokens == 0
    states = [{"effective_max_running_requests_per_dp": 2**30}]
    assert describe({"dp_size": 4096, "internal_states": states}, "").running_max == 0


def test_it_says_its_events_for_all_ranks() -> None:
    events = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "", "dp_size": 2}
    config = '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557"}'
    answer = {"kv_events": events, "kv_events_config": config, "model_path": "m"}
    assert event_sources(msgspec.json.encode(answer), URL) == (
        Source(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:6557"),
        Source(1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:6558"),
    )
    named = {"kv_events": {**events, "endpoint_host": "engine-1", "dp_size": 1}}
    assert event_sources(msgspec.json.encode(named), URL) == (Source(0, "tcp://engine-1:5557"),)


@pytest.mark.parametrize(
    ("info", "ranks"),
    [
        ({"dp_size": 8, "version": "0.5.23"}, 8),
        ({"dp_size": 8, "version": "0.5.7"}, 8),
        ({"dp_size": 8, "version": "0.5.6.post2"}, 0),
        ({"dp_size": 8, "version": "0.4.10"}, 0),
        ({"dp_size": 8, "version": "main"}, 8),
        ({"dp_size": 8}, 8),
        ({"dp_size": 1, "version": "0.5.23"}, 1),
        ({"dp_size": -2}, 0),
        ({"dp_size": "8"}, 0),
        ({"dp_size": 10**9}, 0),
        ({"dp_size": 8, "version": "9" * 10_000}, 8),
    ],
)
def test_its_ranks_count_where_a_request_can_name_one(info: dict[str, Any], ranks: int) -> None:
    """The OpenAI endpoints take a rank since 0.5.7."""
    assert describe(info, "").ranks == ranks
