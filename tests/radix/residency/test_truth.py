"""The tree predicts the cache's reuse from the emulator's KV events, block by block."""

from typing import Any, ClassVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv_encoding import CacheGroup, Content, Encoding, SglangEncoding, VllmEncoding
from loadtest.engine.kv_events import KvEvents
from loadtest.engine.tokens import pack_ids
from radix import FULL_ATTENTION, AttentionProfile, PrefixTree, apply, chain_bytes, chain_token_ids
from radix.residency import BlocksRemoved, BlocksStored, CacheCleared, EngineEvent, Residency

BLOCK = 4
FULL = CacheGroup("full", "full_attention")
WINDOW = CacheGroup("sliding_window", "sliding_window", 9)
STATE = CacheGroup("linear", "mamba")

texts = st.one_of(
    st.text("ab", max_size=12),
    st.builds(
        lambda stem, rest: (stem + rest)[:14], st.sampled_from(["aaaaaa", "aaaabbbbaa"]), st.text("ab")
    ),
)


def ids_of(text: str) -> list[int]:
    """A letter is a block."""
    return [ord(letter) for letter in text for _ in range(BLOCK)]


def blocks_of(text: str) -> bytes:
    """The engine's hashes, which are not the tree's."""
    return chain_bytes(text.encode(), 99, 1)


def read(event: Any) -> EngineEvent:
    """An event from the wire: SGLang's arrays, vLLM's maps."""
    if isinstance(event, list):
        match event:
            case ["BlockStored", hashes, parent, ids, size, None, medium]:
                return BlocksStored(hashes, parent, ids, size, medium=medium)
            case ["BlockRemoved", hashes, medium]:
                return BlocksRemoved(hashes, None, medium)
        return CacheCleared()
    if event["type"] == "BlockRemoved":
        return BlocksRemoved(event["block_hashes"], event["group_idx"], event["medium"])
    if event["type"] == "AllBlocksCleared":
        return CacheCleared()
    return BlocksStored(
        event["block_hashes"],
        event["parent_block_hash"],
        event["token_ids"],
        event["block_size"],
        event["group_idx"],
        event["kv_cache_spec_kind"],
        event.get("kv_cache_spec_sliding_window"),
        event["medium"],
        event["lora_name"],
        event.get("extra_keys"),
    )


class Requests(RuleBasedStateMachine):
    """Random requests on a small cache. Subclasses say which."""

    variants: ClassVar[list[dict[str, Any]]]
    encodings: ClassVar[list[Encoding]]
    profile: ClassVar[AttentionProfile] = FULL_ATTENTION

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.texts: dict[bytes, str] = {}
        self.batches: list[bytes] = []
        self.due: list[Any] = []
        self.at_us = 0
        self.cleared = False
        events = KvEvents(
            data.draw(st.sampled_from(self.encodings)),
            lambda blocks: Content(blocks, pack_ids(ids_of(self.texts[blocks]))),
            self.batches.append,
            self.due.append,
        )
        rules = CacheRules(block_tokens=BLOCK, **data.draw(st.sampled_from(self.variants)))
        self.cache = KvCache(rules, events)
        self.residency = Residency(BLOCK, lambda lora, salt: 5)
        self.tree = PrefixTree(block_tokens=BLOCK)
        self.running: list[tuple[Lease, str, int]] = []

    def hear(self) -> None:
        """The end of a turn of the engine's loop: one batch."""
        while self.due:
            self.due.pop()()
        self.cleared = self.cleared and not self.batches
        for batch in self.batches:
            _, events, rank = msgspec.msgpack.decode(batch)
            self.residency.apply(rank, [read(event) for event in events])
        self.batches.clear()
        self.at_us += 1
        for op in self.residency.changes("w", self.at_us):
            apply(self.tree, op, 0)

    def predicted(self, text: str, tokens: int) -> int:
        path = chain_token_ids(ids_of(text), 5, BLOCK)[: (tokens - 1) // BLOCK * 8]
        match = self.tree.match(path, self.profile)
        return int(match.safe[0]) * BLOCK if match.slots else 0

    def blocks(self, text: str) -> bytes:
        self.texts[blocks_of(text)] = text
        return blocks_of(text)

    def pick(self, data: st.DataObject) -> tuple[Lease, str, int]:
        return self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))

    @rule(text=texts, tail=st.integers(0, 3), output=st.sampled_from([0, 3, 16, 24]))
    def arrive(self, text: str, tail: int, output: int) -> None:
        tokens = max(1, len(text) * BLOCK + tail)
        blocks = self.blocks(text)
        lease = self.cache.open(blocks, tokens, output, 0.0)
        if not self.cleared:
            assert self.predicted(text, tokens) == self.cache.match_tokens(blocks, tokens)
        if self.cache.admit(lease, 0.0):
            self.running.append((lease, text, lease.matched_tokens))
        self.hear()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        lease, text, tokens = self.pick(data)
        chunk = self.cache.rules.chunk_tokens or lease.prompt_tokens
        tokens = min(lease.prompt_tokens, tokens + data.draw(st.integers(1, chunk)))
        self.cache.computed(lease, tokens, 0.0)
        self.running.append((lease, text, tokens))
        self.hear()

    @precondition(lambda self: any(lease.prompt_tokens == tokens for lease, _, tokens in self.running))
    @rule(data=st.data(), answer=st.text("ab", min_size=5, max_size=5), share=st.floats(0, 1))
    def finish(self, data: st.DataObject, answer: str, share: float) -> None:
        done = [entry for entry in self.running if entry[0].prompt_tokens == entry[2]]
        lease, text, tokens = entry = data.draw(st.sampled_from(done))
        self.running.remove(entry)
        answered = round(share * lease.output_tokens)
        self.cache.decoded(lease, answered, 0.0)
        tokens += answered
        self.cache.close(lease, self.blocks((text + answer)[: tokens // BLOCK]), tokens, 0.0)
        self.hear()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.cache.abort(self.pick(data)[0], 0.0)
        self.hear()

    @rule()
    def clear(self) -> None:
        """An idle engine keeps it to itself until something else happens."""
        self.cleared = self.cache.clear() or self.cleared
        self.hear()


class Dense(Requests):
    """Full attention, by the events of both engines."""

    variants: ClassVar[list[dict[str, Any]]] = [
        {"full_tokens": 80, "match_rule": "vllm"},
        {"full_tokens": 56, "match_rule": "sglang"},
    ]
    encodings: ClassVar[list[Encoding]] = [
        VllmEncoding(BLOCK, [FULL]),
        VllmEncoding(BLOCK, [FULL, FULL]),
        SglangEncoding(BLOCK),
    ]


class Windows(Requests):
    """Sliding windows by vLLM's rule, in one or two groups, before or after the full one."""

    variants: ClassVar[list[dict[str, Any]]] = [
        {
            "full_tokens": 80,
            "swa_tokens": 40,
            "attention": "sliding_window",
            "window_tokens": 9,
            "match_rule": "vllm",
            "chunk_tokens": 8,
            **more,
        }
        for more in (
            {},
            {"swa_release": "pressure"},
            {"retained_interval_tokens": 4},
            {"retained_interval_tokens": 8, "decode_release_tokens": 4},
        )
    ]
    encodings: ClassVar[list[Encoding]] = [
        VllmEncoding(BLOCK, [FULL, WINDOW]),
        VllmEncoding(BLOCK, [WINDOW, WINDOW, FULL]),
    ]
    profile: ClassVar[AttentionProfile] = AttentionProfile("sliding_window", window_tokens=9)


class States(Requests):
    """Linear states by vLLM's rule."""

    variants: ClassVar[list[dict[str, Any]]] = [
        {"full_tokens": 80, "attention": "linear", "state_slots": slots, "match_rule": "vllm", **more}
        for slots in (2, 5)
        for more in ({}, {"retained_interval_tokens": 8})
    ]
    encodings: ClassVar[list[Encoding]] = [VllmEncoding(BLOCK, [FULL, STATE])]
    profile: ClassVar[AttentionProfile] = AttentionProfile("linear")


TestDense = Dense.TestCase
TestWindows = Windows.TestCase
TestStates = States.TestCase
for _case in (TestDense, TestWindows, TestStates):
    _case.settings = settings(stateful_step_count=30)
