"""Waiting prompts that another prompt makes cheaper, beside a comparison of all with all."""

from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch.prompt_starts import HASH_BYTES, PromptStarts

prompts = st.lists(st.lists(st.integers(0, 1), max_size=9), max_size=8)


def chained(prompt: list[int]) -> bytes:
    """A path in which a block stands for all before it."""
    numbers = [int("1" + "".join(map(str, prompt[: index + 1]))) for index in range(len(prompt))]
    return b"".join(number.to_bytes(HASH_BYTES, "little") for number in numbers)


def shared(one: list[int], other: list[int]) -> int:
    """Blocks in common, as a power of two."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return 1 << count.bit_length() - 1 if count else 0


@given(prompts, st.sets(st.integers(0, 7)), st.lists(st.integers(0, 1), max_size=9))
def test_those_who_share_a_start_are_found_with_the_most_first(
    waiting: list[list[int]], gone: set[int], placed: list[int]
) -> None:
    starts = PromptStarts()
    for number, prompt in enumerate(waiting):
        starts.add(str(number), chained(prompt))
    for number in gone:
        starts.discard(str(number))
        starts.discard(str(number))
    found = list(starts.sharing(chained(placed)))
    expected = {
        str(number): shared(prompt, placed)
        for number, prompt in enumerate(waiting)
        if number not in gone and shared(prompt, placed)
    }
    assert dict(found) == expected
    assert len(found) == len(expected)
    assert [blocks for _, blocks in found] == sorted(expected.values(), reverse=True)


def test_nothing_is_kept_of_those_who_are_gone() -> None:
    starts = PromptStarts()
    for number in range(3):
        starts.add(str(number), chained([0, 1, number % 2]))
    assert len(starts) == 2
    for number in range(3):
        starts.discard(str(number))
    assert len(starts) == 0
