import numpy as np
import pytest

from loadtest.engine.timing import PrefillTiming
from loadtest.simulator.least_work import least_work_s, prefills_s, shared_out
from loadtest.simulator.workload import SimRequest

PREFILL = PrefillTiming(a_s=1.0, b_s=0.01, c0_tokens=1e12)


def request(tokens: int) -> SimRequest:
    """Prompts of any length have the same beginning."""
    return SimRequest(np.arange(1, 1 + tokens // 64, dtype="<u8").tobytes(), tokens, 1)


def test_each_prompt_is_prefilled_behind_what_the_cache_had_of_it() -> None:
    assert prefills_s([request(128), request(256)], np.array([0, 128]), PREFILL) == pytest.approx(
        [2.28, 2.28]
    )


def test_the_least_work_is_that_of_one_infinite_cache_in_this_order() -> None:
    """128 tokens; then 256 behind those; then 128 again, of which the last block is computed."""
    requests = [request(128), request(256), request(128)]

    assert least_work_s(requests, PREFILL, block_tokens=64) == pytest.approx(2.28 + 2.28 + 1.64)


def test_workers_go_where_the_work_is_and_nobody_is_left_without() -> None:
    assert shared_out(8, [6.0, 1.0, 1.0]) == [6, 1, 1]
    assert shared_out(4, [100.0, 0.0]) == [3, 1]
