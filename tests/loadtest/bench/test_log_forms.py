"""Tests of `loadtest.bench.log_forms`."""

from loadtest.bench.log_crowd import CONVERSATIONS
from loadtest.bench.log_forms import price


async def test_the_new_part_of_a_prompt_is_shorter_and_every_part_of_its_price_is_measured() -> None:
    """Two turns of each conversation: the second one adds three blocks to fifty."""
    whole = await price(50, 10, 2 * CONVERSATIONS, onward=False)
    onward = await price(50, 10, 2 * CONVERSATIONS, onward=True)

    assert onward.size_bytes < whole.size_bytes / 3
    for found in (whole, onward):
        assert found.publish_us > 0
        assert found.decode_us > 0
        assert found.read_us > found.decode_us
