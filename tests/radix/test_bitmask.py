"""Bitmasks become rows of arrays the same way, for any number and size."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radix.bitmask import bits, scatter


@given(st.sets(st.integers(0, 2000)))
def test_bits_are_the_positions_in_order(positions: set[int]) -> None:
    assert list(bits(sum(1 << position for position in positions))) == sorted(positions)


@given(st.binary(min_size=1, max_size=300), st.integers(2, 20), st.integers(0, 100))
def test_every_slot_gets_the_number_of_its_mask(drawn: bytes, kinds: int, spare: int) -> None:
    """Group 0 is in no mask and keeps its value; the others get ten times their number."""
    groups = [byte % kinds for byte in drawn * 7]
    masks = [sum(1 << slot for slot, group in enumerate(groups) if group == mine) for mine in range(1, kinds)]
    values = np.full(len(groups) + spare, -1, dtype=np.int32)

    scatter(values, [(mask, mine * 10) for mine, mask in enumerate(masks, 1)])

    assert values.tolist() == [group * 10 if group else -1 for group in groups] + [-1] * spare
