"""The cache beside a naive model that keeps every block on its own, through random lives of requests."""

from typing import Any, ClassVar

import pytest
from fakes.naive_kv import NaiveKv, NaiveLease
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tree import HASH_BYTES
from radix import chain_bytes

BLOCK = 4

texts = st.one_of(
    st.text("ab", max_size=12),
    st.builds(
        lambda stem, rest: (stem + rest)[:14], st.sampled_from(["aaaaaa", "aaaabbbbaa"]), st.text("ab")
    ),
)


def blocks_of(text: str) -> bytes:
    return chain_bytes(text.encode(), 7, 1)


class Shadow:
    """Blocks that a listener believes to be there, by group."""

    def __init__(self) -> None:
        self.groups: dict[str, set[bytes]] = {"full": set(), "sliding_window": set(), "linear": set()}

    def stored(self, lease: Lease, start_block: int, end_block: int, group: str) -> None:
        for at in range(start_block, end_block):
            block = lease.blocks[at * HASH_BYTES : (at + 1) * HASH_BYTES]
            assert block not in self.groups[group]
            self.groups[group].add(block)

    def removed(self, blocks: bytes, group: str, medium: str) -> None:
        assert medium == "GPU"
        for at in range(0, len(blocks), HASH_BYTES):
            self.groups[group].remove(blocks[at : at + HASH_BYTES])

    def cleared(self) -> None:
        for group in self.groups.values():
            group.clear()


class Requests(RuleBasedStateMachine):
    """Random requests on a small cache. Subclasses say which."""

    variants: ClassVar[list[dict[str, Any]]]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.rules = CacheRules(block_tokens=BLOCK, **data.draw(st.sampled_from(self.variants)))
        self.naive = NaiveKv(self.rules)
        self.shadow = Shadow()
        self.cache = KvCache(self.rules, self.shadow)
        self.running: list[tuple[Lease, NaiveLease, int]] = []

    def pick(self, data: st.DataObject) -> tuple[Lease, NaiveLease, int]:
        at = data.draw(st.integers(0, len(self.running) - 1))
        return self.running.pop(at)

    @rule(text=texts, tail=st.integers(0, 3), output=st.sampled_from([0, 3, 16, 24]))
    def arrive(self, text: str, tail: int, output: int) -> None:
        tokens = max(1, len(text) * BLOCK + tail)
        blocks = blocks_of(text)
        expected = self.naive.found(text, tokens)[1]
        assert self.cache.match_tokens(blocks, tokens) == expected * BLOCK
        naive = self.naive.admit(text, tokens, output)
        lease = self.cache.open(blocks, tokens, output, 0.0)
        assert self.cache.admit(lease, 0.0) == (naive is not None)
        if naive is not None:
            assert lease.matched_tokens == naive.matched * BLOCK
            self.running.append((lease, naive, lease.matched_tokens))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        lease, naive, tokens = self.pick(data)
        chunk = self.rules.chunk_tokens or lease.prompt_tokens
        tokens = min(lease.prompt_tokens, tokens + data.draw(st.integers(1, chunk)))
        self.cache.computed(lease, tokens, 0.0)
        self.naive.computed(naive, tokens)
        self.running.append((lease, naive, tokens))

    @precondition(lambda self: any(lease.prompt_tokens == tokens for lease, _, tokens in self.running))
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        done = [entry for entry in self.running if entry[0].prompt_tokens == entry[2]]
        lease, naive, _ = data.draw(st.sampled_from(done))
        tokens = data.draw(st.sampled_from([lease.output_tokens, lease.output_tokens // 2]))
        self.cache.decoded(lease, tokens, 0.0)
        self.naive.decoded(naive, tokens)

    @precondition(lambda self: any(lease.prompt_tokens == tokens for lease, _, tokens in self.running))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        done = [entry for entry in self.running if entry[0].prompt_tokens == entry[2]]
        entry = data.draw(st.sampled_from(done))
        self.running.remove(entry)
        lease, naive, tokens = entry
        tokens += data.draw(st.integers(0, lease.output_tokens))
        answer = data.draw(st.text("ab", min_size=5, max_size=5))
        text = (naive.text + answer)[: tokens // BLOCK]
        self.cache.close(lease, blocks_of(text), tokens, 0.0)
        self.naive.close(naive, text, tokens)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        lease, naive, _ = self.pick(data)
        self.cache.abort(lease, 0.0)
        self.cache.abort(lease, 0.0)
        self.naive.end(naive)

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "naive"):
            return
        naive, device = self.naive, self.cache.device
        texts = {blocks_of(text)[-HASH_BYTES:]: text for text in naive.blocks}
        held: set[str] = set()
        live: set[str] = set()
        for node in self.cache.tree.nodes():
            hashes = [node.key[at : at + HASH_BYTES] for at in range(0, len(node.key), HASH_BYTES)]
            held |= {texts.get(block, f"unknown at {node}") for block in hashes}
            if node.swa:
                live |= {texts[block] for block in hashes}
        assert held == set(naive.blocks)
        assert live == naive.live
        assert device.full.held == len(held) * BLOCK
        assert device.full.locked == len(naive.locked) * BLOCK
        assert device.full.reserved == naive.reserved
        assert device.swa.held == len(live) * BLOCK
        assert device.swa.locked == len(naive.window_locked) * BLOCK
        assert device.swa.reserved == naive.swa_reserved
        if not naive.shared:
            assert device.full.free >= 0
            assert device.swa.free >= 0
        assert self.shadow.groups["full"] == set(texts)
        if naive.shared:
            assert self.shadow.groups["sliding_window"] == {blocks_of(text)[-HASH_BYTES:] for text in live}

    def teardown(self) -> None:
        if not hasattr(self, "naive"):
            return
        for lease, _, _ in self.running:
            self.cache.abort(lease, 0.0)
        device = self.cache.device
        assert device.full.used == device.swa.used == device.swa.committed == 0
        assert self.cache.clear()
        assert device.full.held == device.swa.held == 0
        assert not self.shadow.groups["full"]


def sliding(**more: Any) -> dict[str, Any]:
    return {
        "full_tokens": 100,
        "swa_tokens": 80,
        "attention": "sliding_window",
        "window_tokens": 8,
        "chunk_tokens": 8,
        "decode_release_tokens": 4,
        **more,
    }


class DenseRequests(Requests):
    variants: ClassVar = [{"full_tokens": tokens} for tokens in (40, 60, 101)]


class SglangRequests(Requests):
    variants: ClassVar = [
        sliding(**more, **size)
        for more in (
            {},
            {"swa_release": "pressure"},
            {"retained_interval_tokens": 16},
            {"retained_interval_tokens": 10, "swa_release": "pressure"},
            {"decode_release_tokens": 7},
            {"window_tokens": 6, "chunk_tokens": 0},
            {"window_tokens": 1, "chunk_tokens": 12, "swa_release": "pressure"},
        )
        for size in ({}, {"full_tokens": 70, "swa_tokens": 56}, {"swa_tokens": 400})
    ]


class VllmRequests(Requests):
    variants: ClassVar = [
        sliding(match_rule="vllm", **more, **size)
        for more in (
            {},
            {"swa_release": "pressure"},
            {"retained_interval_tokens": 16},
            {"swa_release": "pressure", "swa_groups": 3},
            {"window_tokens": 9, "swa_groups": 2},
        )
        for size in ({}, {"full_tokens": 70, "swa_tokens": 56})
    ]


@pytest.mark.parametrize("requests", [DenseRequests, SglangRequests, VllmRequests])
def test_the_cache_does_what_the_naive_model_does(requests: type[Requests]) -> None:
    case = requests.TestCase
    case.settings = settings(stateful_step_count=40)
    case().runTest()
