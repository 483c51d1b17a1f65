"""An engine's load from its metrics: the few lines that count, among any others."""

import pytest

from router.fleet.engine_load import _LOADS, EngineLoad, engine_load, rank_loads

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
"""

SGLANG = b"""# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 7.0
# TYPE sglang:num_running_reqs_offline_batch gauge
sglang:num_running_reqs_offline_batch{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 99.0
# TYPE sglang:num_used_tokens gauge
sglang:num_used_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 123456.0
# TYPE sglang:token_usage gauge
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.5
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1.0
"""


def test_vllm_says_its_load_in_its_own_words() -> None:
    assert engine_load(VLLM) == EngineLoad(3, 2, 0.25)


def test_sglang_says_its_load_in_its_own_words() -> None:
    assert engine_load(SGLANG) == EngineLoad(7, 1, 0.5)


def test_requests_of_data_parallel_ranks_are_added_and_their_shares_averaged() -> None:
    page = b"""
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="1",model_name="m"} 5
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6
"""
    assert engine_load(page) == EngineLoad(8, -1, pytest.approx(0.4))


def test_tensor_parallel_ranks_that_all_report_count_once() -> None:
    """SGLang, ``--enable-metrics-for-all-schedulers``: two data-parallel ranks of two schedulers each."""
    page = b"".join(
        b'sglang:num_running_reqs{dp_rank="%d",model_name="m",tp_rank="%d"} %d\n' % (dp, 2 * dp + tp, 4 + dp)
        for dp in range(2)
        for tp in range(2)
    )
    assert engine_load(page) == EngineLoad(running=9)


def test_used_tokens_of_a_capacity_are_a_share() -> None:
    page = b'sglang:num_used_tokens{m="m"} 300\nsglang:max_total_num_tokens{m="m"} 1200\n'
    assert engine_load(page) == EngineLoad(kv_ratio=0.25)
    assert engine_load(b"sglang:num_used_tokens 300\nsglang:max_total_num_tokens 0\n") is None
    assert engine_load(b"sglang:num_used_tokens 300\n") is None


@pytest.mark.parametrize(
    ("line", "running"),
    [
        (b"vllm:num_requests_running 4", 4),
        (b"vllm:num_requests_running 4 1700000000000", 4),
        (b'vllm:num_requests_running{name="a} b{"} 4.0 1700000000000', 4),
        (b'vllm:num_requests_running{x="1"} 1e1', 10),
        (b'vllm:num_requests_running{x="1"} NaN', None),
        (b'vllm:num_requests_running{x="1"} +Inf', None),
        (b'vllm:num_requests_running{x="1"} -3', None),
        (b'vllm:num_requests_running{x="1"} ', None),
        (b'vllm:num_requests_running{x="1"', None),
        (b"vllm:num_requests_running_total 4", None),
        (b"# vllm:num_requests_running 4", None),
        (b"", None),
    ],
)
def test_a_sample_is_read_as_prometheus_writes_it_or_not_at_all(line: bytes, running: int | None) -> None:
    expected = None if running is None else EngineLoad(running=running)
    assert engine_load(line) == expected
    assert engine_load(b"other 1\n" + line + b"\nother 2\n") == expected


def test_a_page_of_anything_else_says_nothing() -> None:
    assert engine_load(b"<html>not found</html>") is None
    assert engine_load(b"\xff\xfe" * 1000) is None


@pytest.mark.parametrize("value", [b"1e300", b"NaN", b"+Inf", b"-1", b"3e9", b"9" * 400])
def test_numbers_that_no_engine_has_are_not_said(value: bytes) -> None:
    page = VLLM.replace(b" 3.0", b" " + value).replace(b" 2.0", b" " + value).replace(b" 0.25", b" " + value)
    assert engine_load(page) is None
    used = b"sglang:num_used_tokens{} 5\nsglang:max_total_num_tokens{} " + value
    assert engine_load(used) == (EngineLoad(kv_ratio=5 / 3e9) if value == b"3e9" else None)


def test_ranks_that_add_up_to_too_much_are_bounded() -> None:
    line = b'vllm:num_requests_running{engine="%d"} 2e9\n'
    assert engine_load(b"".join(line % rank for rank in range(5))) == EngineLoad(running=2**31 - 1)


def test_the_load_of_each_rank_is_told_apart() -> None:
    page = b"""sglang:num_running_reqs{dp_rank="0"} 3
sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 5
sglang:num_running_reqs{dp_rank="1",tp_rank="1"} 5
sglang:num_queue_reqs{dp_rank="1"} 2
sglang:token_usage{dp_rank="0"} 0.25
"""
    assert rank_loads(page, 2) == [EngineLoad(3, -1, 0.25), EngineLoad(5, 2, -1.0)]


@pytest.mark.parametrize(
    "page", [b"", b"sglang:num_running_reqs 3\n", b'sglang:num_running_reqs{dp_rank="0"} 3\n']
)
def test_a_page_that_does_not_tell_all_ranks_tells_none(page: bytes) -> None:
    assert rank_loads(page, 2) is None


def test_all_names_of_an_engine_begin_as_its_pages_are_told_by() -> None:
    for beginning, load in _LOADS.items():
        names = (load.running, load.waiting, *load.shares, *(load.used or ()))
        assert all((b"\n" + name).startswith(beginning) for name in names)


def test_a_name_of_another_engine_does_not_hide_the_load() -> None:
    page = b"vllm:of_a_library 1\n" + b'sglang:num_running_reqs{dp_rank="0"} 3\n'
    assert engine_load(page) == EngineLoad(running=3)
    assert rank_loads(page, 1) == [EngineLoad(running=3)]
