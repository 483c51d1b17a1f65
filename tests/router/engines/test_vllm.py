"""vLLM's answers as seen on the wire, and other possible ones."""

import msgspec
import pytest

from router.engines.sources import Source
from router.engines.vllm import VLLM, capacity_tokens, event_sources

URL = "http://10.0.0.7:8000"


def test_it_says_its_capacity_in_blocks() -> None:
    """240 blocks of 32 tokens."""
    text = 'x 1\nvllm:cache_config_info{block_size="32",num_gpu_blocks="240",engine="0"} 1\n'
    assert capacity_tokens(text) == 7680
    assert capacity_tokens('vllm:cache_config_info{block_size="32",num_gpu_blocks="None"} 1') == 0
    assert capacity_tokens("") == 0


@pytest.mark.parametrize(
    ("said", "ranks", "tokens"), [("1730", 1, 1730), ("1730", 2, 3460), ("None", 2, 7680)]
)
def test_it_says_better_itself_what_a_rank_can_hold(said: str, ranks: int, tokens: int) -> None:
    """A Gemma 3 keeps most of its 240 blocks of 32 tokens, over all ranks, for windows."""
    lines = [f'vllm:num_requests_running{{model_name="m",engine="{rank}"}} 0.0' for rank in range(ranks)]
    config = f'block_size="32",num_gpu_blocks="240",kv_cache_size_tokens="{said}",engine="0"'
    lines.append(f"vllm:cache_config_info{{{config}}} 1")

    assert capacity_tokens("\n".join(lines)) == tokens


@pytest.mark.parametrize(("size", "count"), [("16", "9" * 400), ("2" * 9, "2" * 9), ("²", "1"), ("-1", "-1")])
def test_products_beyond_their_bounds_are_not_said(size: str, count: str) -> None:
    labels = f'block_size="{size}",num_gpu_blocks="{count}"'
    assert capacity_tokens(f"vllm:cache_config_info{{{labels}}} 1") == 0


def test_it_says_its_events_per_rank_and_a_wildcard_is_its_own_host() -> None:
    answer = {
        "1": {
            "endpoint": "tcp://*:5558",
            "replay_endpoint": "tcp://*:6558",
            "topic": "kv",
            "publisher": "zmq",
        },
        "0": {"endpoint": "tcp://0.0.0.0:5557", "replay_endpoint": None, "hwm": 1},
        "2": {"endpoint": "tcp://*:1", "publisher": "null"},
        "x": {"endpoint": "tcp://*:1"},
    }
    assert event_sources(msgspec.json.encode(answer), URL) == (
        Source(0, "tcp://10.0.0.7:5557"),
        Source(1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:6558", "kv"),
    )
    assert event_sources(
        msgspec.json.encode({"0": {"endpoint": "tcp://[::]:5"}}), "http://[fd00::7]:8000"
    ) == (Source(0, "tcp://[fd00::7]:5"),)


@pytest.mark.parametrize(
    ("engines", "ranks"), [("01", 2), ("10", 2), ("0", 1), ("12", 0), ("", 0), ("02", 0), ("0x", 0)]
)
def test_its_ranks_are_those_of_its_metrics_if_they_count_from_zero(engines: str, ranks: int) -> None:
    """A server of some ranks of many names others: which of them a header means is not known."""
    page = "".join(f'vllm:num_requests_running{{engine="{each}",model_name="m"}} 0\n' for each in engines)
    assert VLLM.ranks(page) == ranks
