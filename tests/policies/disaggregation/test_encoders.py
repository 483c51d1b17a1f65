"""Media keep to an encoder, and no encoder gets more than its share."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.disaggregation import choose_encoder
from policies.disaggregation.encoders import BATCH, LOAD_FACTOR

hashes = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12, unique=True).map(
    lambda each: np.array(each, dtype=np.uint64)
)
keys = st.integers(0, 2**64 - 1)


@given(key=keys, encoders=hashes, more=st.integers(0, 2**64 - 1))
def test_an_encoder_that_comes_or_goes_moves_only_what_it_wins(
    key: int, encoders: np.ndarray, more: int
) -> None:
    row, moved = choose_encoder(key, encoders, np.zeros(len(encoders)))
    joined, _ = choose_encoder(key, np.append(encoders, np.uint64(more)), np.zeros(len(encoders) + 1))

    assert not moved
    assert joined in (row, len(encoders))


@given(encoders=hashes, wanted=st.lists(keys, max_size=90))
def test_nobody_has_more_than_a_quarter_above_the_mean(encoders: np.ndarray, wanted: list[int]) -> None:
    """The rule holds if all requests want the same: its parts spill over, and come back under less load."""
    load = np.zeros(len(encoders))
    for count, key in enumerate(wanted):
        row, moved = choose_encoder(key, encoders, load)
        assert load[row] < max(np.ceil(LOAD_FACTOR * (count + 1) / len(encoders)), BATCH)
        assert moved == (row != choose_encoder(key, encoders, np.zeros(len(encoders)))[0])
        load[row] += 1
