"""From real engines' recorded events, byte by byte, the tree predicts their later reuse.

Recorded by ``python -m loadtest.vllm.record`` (`loadtest.vllm.record`).
"""

from pathlib import Path

import pytest

from loadtest.vllm.record import load
from radix import FULL_ATTENTION, AttentionProfile, PrefixTree, apply, chain_token_ids
from radix.blocks import HASH_BYTES
from radix.residency import CacheCleared, Residency
from router.fleet.kv_events.sequence import Loss, Sequence
from router.fleet.kv_events.wire import Decoder

RECORDED = Path(__file__).parent / "recorded"
ROOT = 5


class Follower:
    """Frames into a tree."""

    def __init__(self, block_tokens: int, window_tokens: int | None) -> None:
        self.block_tokens = block_tokens
        self.profile = (
            AttentionProfile("sliding_window", window_tokens=window_tokens)
            if window_tokens
            else FULL_ATTENTION
        )
        self.decoder = Decoder()
        self.residency = Residency(block_tokens, lambda lora, salt: ROOT)
        self.tree = PrefixTree(block_tokens=block_tokens)
        self.sequence = Sequence(self)
        self.sequence.connected()
        self.sequence.ended(answered=True)
        self.at_us = 1
        self.cleared = False

    def batch(self, payload: bytes) -> None:
        batch = self.decoder.decode(payload)
        assert not batch.damaged
        self.cleared = self.cleared or any(isinstance(event, CacheCleared) for event in batch.events)
        self.residency.apply(0, batch.events)

    def lost(self, loss: Loss) -> None:
        pytest.fail(f"nothing was: {loss}")

    def read(self, frames: list[list[bytes]]) -> bool:
        """Take in what was published; whether the cache was emptied before."""
        self.cleared = False
        for _, number, payload in frames:
            self.sequence.came(int.from_bytes(number, "big"), payload)
        self.at_us += 1
        for op in self.residency.changes("w", self.at_us):
            apply(self.tree, op, 0)
        return self.cleared

    def predicted_tokens(self, prompt: list[int]) -> int:
        reusable = (len(prompt) - 1) // self.block_tokens
        path = chain_token_ids(prompt, ROOT, self.block_tokens)[: reusable * HASH_BYTES]
        match = self.tree.match(path, self.profile)
        return int(match.safe[0]) * self.block_tokens if match.slots else 0


@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_what_was_published_predicts_what_was_reused(kind: str) -> None:
    """An engine tells that its cache was emptied with its next step: then only that is too late."""
    recording = load(RECORDED / f"{kind}.msgpack.gz")
    follower = Follower(recording.block_tokens, recording.window_tokens)
    told = []
    for step in recording.steps:
        predicted_tokens = follower.predicted_tokens(step.prompt)
        if not follower.read(step.frames):
            told.append((predicted_tokens, step.cached_tokens))
    assert len(told) == len(recording.steps) - 1
    assert all(predicted == cached for predicted, cached in told), told
    assert sum(cached > 0 for _, cached in told) > 15
    assert follower.sequence.live
    assert follower.residency.readable
    assert follower.decoder.counts["removed"] > 10
    assert follower.decoder.counts["cleared"] == 1
