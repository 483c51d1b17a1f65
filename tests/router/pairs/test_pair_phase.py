"""The states of a pair: what the drawing in `router.pairs.pair_phase` promises."""

from itertools import pairwise

from router.pairs.pair_phase import NEXT_OF_PAIR, PairPhase


def test_a_pair_goes_one_way_and_may_be_released_from_anywhere() -> None:
    for before, after in pairwise(PairPhase):
        assert NEXT_OF_PAIR[before][after] is after
    releasable = [phase for phase in PairPhase if PairPhase.RELEASED in NEXT_OF_PAIR[phase]]
    assert releasable == [PairPhase.PREFILLING, PairPhase.SHIPPING, PairPhase.DECODING]
