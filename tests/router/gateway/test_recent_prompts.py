"""The block hashes of newest prompts: bounded in number and bytes, and found by a decision's number."""

from hypothesis import given
from hypothesis import strategies as st

from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.gateway.recent_prompts import REQUEST_BYTES, RecentPrompts


def request(blocks: int) -> ParsedRequest:
    return ParsedRequest(
        Endpoint.CHAT, "m", False, None, 1, 0, "", "", None, (bytes(8 * blocks),), 0, 256 * blocks, 1, 1
    )


@given(st.lists(st.integers(0, 600), max_size=40), st.integers(1, 12), st.integers(1, 6))
def test_the_newest_are_kept_within_both_bounds(blocks: list[int], kept_max: int, kilobytes: int) -> None:
    prompts = RecentPrompts(kept_max, kilobytes * 4096)
    sizes = [REQUEST_BYTES + 8 * each for each in blocks]
    for number, each in enumerate(blocks, 1):
        prompts.keep(number, request(each))

    assert len(prompts) <= kept_max
    assert prompts.bytes == sum(sizes[len(sizes) - len(prompts) :]) <= kilobytes * 4096
    for number, each in enumerate(blocks, 1):
        found = prompts.of(number)
        kept = number > len(blocks) - len(prompts)
        assert (found is not None) is kept
        assert found is None or len(found.paths[0]) == 8 * each


def test_a_decision_without_a_prompt_finds_nothing() -> None:
    prompts = RecentPrompts()
    prompts.keep(1, request(1))
    prompts.keep(3, request(1))
    assert prompts.of(2) is None
    assert prompts.of(4) is None
