"""The engines that are simulated: prefill times, KV and decode of the case study."""

import pickle

import numpy as np
import pytest

from loadtest.engine.profiles import EngineProfile
from loadtest.plan.prfaas.curves import DECODE_PER_S, h20_s, h200_s, kv_bytes
from loadtest.plan.prfaas.engines import H20, H200
from loadtest.plan.prfaas.paper import OUTPUT_TOKENS, TABLE_5


def test_prefill_takes_what_the_paper_measured() -> None:
    for row in TABLE_5:
        assert H200.prefill.prompt_s(row.tokens, 0) == pytest.approx(row.prefill_s)
        assert H200.shape.kv_bytes(row.tokens) == pytest.approx(row.kv_mib * 2**20, rel=0.012)
        assert H200.shape.kv_bytes(row.tokens) == pytest.approx(kv_bytes(np.array([row.tokens]))[0], rel=1e-3)


@pytest.mark.parametrize(("engine", "curve"), [(H200, h200_s), (H20, h20_s)])
def test_what_the_gateway_is_told_is_near_the_curve(engine: EngineProfile, curve: object) -> None:
    lengths = np.geomspace(1_000, 131_000, 30)
    told = np.array([engine.prefill.model().service_s(tokens, 0) for tokens in lengths])
    assert callable(curve)
    assert told == pytest.approx(curve(lengths), rel=0.16)


def test_cached_tokens_cost_what_is_attended_to() -> None:
    alone_s, behind_s = (H20.prefill.prompt_s(1_000, cached) for cached in (0, 60_000))
    prices = H20.prefill
    assert behind_s - alone_s == pytest.approx(prices.b_s * 1_000 * 60_000 / prices.c0_tokens)


def test_a_faster_engine_is_faster_at_all_of_it() -> None:
    fast = H20.with_prefill(2.0).prefill
    for uncached, cached in ((5_000, 0), (500, 40_000)):
        assert fast.prompt_s(uncached, cached) == pytest.approx(H20.prefill.prompt_s(uncached, cached) / 2)


def test_decode_serves_what_the_paper_says() -> None:
    assert H20.max_running / H20.decode.stretch(20, 1e6).seconds(OUTPUT_TOKENS) == pytest.approx(DECODE_PER_S)


def test_engines_can_be_sent_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(H200)) == H200
