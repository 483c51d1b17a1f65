"""The bound of a worker's blocks is in tokens, for any size of blocks."""

from random import Random

import pytest

from policies import Finished, FleetRules, FleetState, Placed, WorkerGone, WorkerPut
from policies.state.block_size import BLOCKS_KEPT, BlockSize

CAPACITY = 256_000
NOW_US = 10**15


def filled(*sizes: int) -> tuple[FleetState, int]:
    """A fleet of one worker, after many prompts of 20 blocks of this size; and its held blocks."""
    random, fleet = Random(1), FleetState(FleetRules())
    fleet.apply(WorkerPut("w:1", 1, "static", "http://w:1", capacity_tokens=CAPACITY))
    for number in range(1000):
        path, size = random.randbytes(8 * 20), sizes[number % len(sizes)]
        fleet.apply(
            Placed(f"r{number}", NOW_US + number, "w:1", "a", 1, 1, 1, (path,), ends=False, block_tokens=size)
        )
        fleet.apply(Finished(f"r{number}", NOW_US + number, NOW_US + number))
    worker = fleet.worker("w:1")
    assert worker is not None
    return fleet, fleet.tree.held_blocks(worker.slot)


@pytest.mark.parametrize(("size", "held"), [(0, 1000), (410, 624), (205, 1248)])
def test_a_worker_is_believed_to_hold_its_capacity_in_tokens(size: int, held: int) -> None:
    """2.5 bytes a token: a block of 1,024 bytes has 410 tokens, and 1,000 of them never fit."""
    _, blocks = filled(size)
    assert blocks == pytest.approx(held, rel=0.03)


def test_text_and_token_ids_are_averaged() -> None:
    _, blocks = filled(0, 410)
    assert blocks == pytest.approx(CAPACITY / 333, rel=0.05)


def test_a_worker_that_was_removed_begins_anew() -> None:
    fleet, _ = filled(410)
    fleet.apply(WorkerGone("w:1", NOW_US * 2, "a"))
    fleet.collect(NOW_US * 4)
    assert fleet.block_tokens(0) == 256


def test_the_mean_follows_what_came_lately_and_tells_when_it_changed() -> None:
    size = BlockSize(0, 0, 256)
    assert not size.add(256, 100)
    assert not size.add(258, 100)
    assert size.add(512, 100)
    assert size.tokens_per_block == pytest.approx((256 + 258 + 512) / 3)
    assert not size.add(900, 0)
    size.add(400, 10 * BLOCKS_KEPT)
    assert size.tokens_per_block == pytest.approx(400, rel=0.1)
    assert BlockSize(256e6, 1e6, 256).add(300, BLOCKS_KEPT)
