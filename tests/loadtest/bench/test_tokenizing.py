"""The bench's conversations are of the size that they say, and go the ways that its table names."""

import asyncio
import random
from pathlib import Path

import pytest

from loadtest.bench import tokenizing
from router.tokenizing.local import LocalTokenizer
from router.tokenizing.lru import Remembered


@pytest.mark.parametrize("size", [1 << 10, 64 << 10])
def test_conversations_have_their_size_and_nothing_in_common(size: int) -> None:
    chance = random.Random(1)
    one, other = (tokenizing.chat(size, chance) for _ in range(2))
    assert size <= sum(len(message["content"]) for message in one) <= size + 200
    assert one[0]["content"][:20] != other[0]["content"][:20]


async def test_a_next_turn_tokenizes_what_is_new_and_a_repeat_nothing(tmp_path: Path) -> None:
    await asyncio.to_thread(tokenizing.trained, tmp_path)
    remembered = Remembered[bytes, bytes](1 << 24)
    bench = tokenizing.Bench(LocalTokenizer(tmp_path, remembered), asyncio.get_running_loop())
    messages = tokenizing.chat(16 << 10, random.Random(1))
    *_, first = await bench.one(messages)
    known = len(remembered)
    *_, second = await bench.one([*messages, {"role": "user", "content": "and what else?"}])
    assert len(remembered) - known <= 3
    assert second.paths[0].startswith(first.paths[0][:-8])
    assert second.prompt_token_ids > first.prompt_token_ids > 1000
    await bench.one([*messages, {"role": "user", "content": "and what else?"}])
    assert [how for (how,) in bench.how] == ["in_a_thread", "in_a_thread", "remembered"]
