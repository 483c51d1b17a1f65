"""Block hashes made from the ids of a trace."""

import numpy as np

from loadtest.simulator.identity import FreshBlocks, answer_blocks, hashes_of, scope_root


def test_ids_of_one_scope_never_collide_and_of_two_scopes_differ() -> None:
    ids = np.arange(50_000, dtype=np.uint64)

    one, other = hashes_of(scope_root("a"), ids), hashes_of(scope_root("b"), ids)

    assert len(np.unique(np.concatenate([one, other]))) == 100_000


def test_hashes_are_the_same_in_every_process() -> None:
    """SplitMix64 from state 0: its first two outputs, as published, for the ids 1 and 2."""
    assert hashes_of(0, np.array([1, 2], dtype=np.uint64)).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
    ]
    assert scope_root("session", 1) == scope_root("session", "1") == 11462848162177644410
    assert scope_root("ab", "c") != scope_root("a", "bc")


def test_fresh_blocks_never_come_again() -> None:
    mint, again = FreshBlocks("s"), FreshBlocks("s")

    taken = mint.take(3) + mint.take(2)

    assert taken == again.take(5)
    assert len(np.unique(np.frombuffer(taken, dtype=np.uint64))) == 5


def test_an_answer_completes_blocks_without_its_last_token() -> None:
    assert answer_blocks(64, 64, 64) == 0
    assert answer_blocks(64, 65, 64) == 1
    assert answer_blocks(63, 2, 64) == 1
    assert answer_blocks(63, 1, 64) == 0
