"""One worker's match is its row of the column, for any number of workers that leave the path, anywhere."""

import pytest

from radix import FULL_ATTENTION, AttentionProfile, Match, PrefixTree, chain_bytes
from radix.match import PARTS_SEARCHED_MAX

BLOCKS = 40
PATH = chain_bytes(bytes(BLOCKS), root=1, block_bytes=1)
LINEAR = AttentionProfile("linear", retained_interval_tokens=512)


def staggered(workers: int, profile: AttentionProfile) -> Match:
    """Each worker holds two blocks more than the one before; the last one holds nothing."""
    tree = PrefixTree()
    for slot in range(workers - 1):
        tree.insert(slot, PATH[: 16 * slot + 8], 1, end=slot % 3 == 0)
    tree.holdings_of(workers - 1)
    return tree.match(PATH, profile)


@pytest.mark.parametrize("profile", [FULL_ATTENTION, LINEAR])
@pytest.mark.parametrize("workers", [1, 2, 5, PARTS_SEARCHED_MAX + 1, PARTS_SEARCHED_MAX + 2, 20])
def test_one_workers_match_is_its_row_of_the_column(workers: int, profile: AttentionProfile) -> None:
    match = staggered(workers, profile)
    matched = [match.matched_at(slot) for slot in range(workers)]
    safe = [100] * workers
    match.add_safe(safe, range(workers))

    assert matched == match.matched.tolist() == [2 * slot + 1 for slot in range(workers - 1)] + [0]
    assert safe == (100 + match.safe).tolist()


def test_without_an_end_or_a_retained_position_nothing_is_safe_for_a_linear_model() -> None:
    """Every second block is retained; of the last blocks held, those where a request of 0 or 3 ended."""
    match = staggered(5, LINEAR)

    assert match.safe.tolist() == [1, 2, 4, 7, 0]
