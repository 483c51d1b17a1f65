"""Bytes that cross between a prefill and a decode worker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.profiles import PROFILES
from policies import KvBytes

MIB = 1024 * 1024

sizes = st.integers(0, 10**6).map(float)


def test_only_the_part_that_the_decode_side_lacks_crosses() -> None:
    dense = KvBytes(kv_bytes_per_token=100.0)
    assert dense.of(1000) == 100_000
    assert dense.of(1000, cached_tokens=600) == 40_000
    assert dense.of(1000, cached_tokens=1000) == 0


def test_windows_and_states_cross_whole_however_much_is_cached() -> None:
    """128 tokens of window at 10 bytes and a state of 5,000 bytes are 6,280 bytes."""
    hybrid = KvBytes(
        kv_bytes_per_token=1.0, window_bytes_per_token=10.0, window_tokens=128, state_bytes=5000.0
    )
    assert hybrid.of(1000, cached_tokens=1000) == hybrid.request_bytes(1000) == 6280
    assert hybrid.of(1000, cached_tokens=900) == 6380


def test_a_prompt_shorter_than_the_window_fills_only_a_part_of_it() -> None:
    assert KvBytes(window_bytes_per_token=10.0, window_tokens=128).of(100) == 1000


def test_nothing_crosses_for_no_tokens() -> None:
    assert KvBytes(kv_bytes_per_token=1.0, state_bytes=5000.0).of(0) == 0


@pytest.mark.parametrize(
    ("kv", "known"),
    [
        (KvBytes(), False),
        (KvBytes(window_tokens=128), False),
        (KvBytes(kv_bytes_per_token=1.0), True),
        (KvBytes(window_bytes_per_token=1.0, window_tokens=1), True),
        (KvBytes(state_bytes=1.0), True),
    ],
)
def test_what_nobody_has_said_is_not_known(kv: KvBytes, known: bool) -> None:
    assert kv.known is known


@pytest.mark.parametrize("length", [(1, 190.8), (8, 308.9), (32, 701.3), (128, 2316.3)])
def test_the_hybrid_model_of_prfaas_weighs_what_its_table_says(length: tuple[int, float]) -> None:
    """Table 5: linear states of 172 MiB and 16.74 MiB per 1024 tokens fit all four rows within 1.1 %."""
    kilotokens, mib = length
    hybrid = KvBytes(kv_bytes_per_token=16.74 * MIB / 1024, state_bytes=172 * MIB)
    assert hybrid.of(kilotokens * 1024) == pytest.approx(mib * MIB, rel=0.011)


@given(st.sampled_from(sorted(PROFILES)), st.integers(0, 200_000))
def test_the_model_of_engines_weighs_kv_alike(name: str, tokens: int) -> None:
    shape = PROFILES[name].shape
    kv = KvBytes(
        float(shape.token_bytes),
        float(shape.window_token_bytes),
        shape.window_tokens,
        float(shape.state_bytes),
    )
    assert kv.of(tokens) == shape.kv_bytes(tokens)


@given(sizes, sizes, st.integers(0, 4096), sizes, st.integers(1, 10**6), st.data())
def test_more_cached_never_means_more_bytes(
    token: float, window: float, window_tokens: int, state: float, tokens: int, data: st.DataObject
) -> None:
    kv = KvBytes(token, window, window_tokens, state)
    some, more = sorted(data.draw(st.tuples(st.integers(0, tokens), st.integers(0, tokens))))
    assert kv.of(tokens) >= kv.of(tokens, some) >= kv.of(tokens, more) >= kv.request_bytes(tokens) >= 0
