"""Streams of an emulated engine that lose, repeat, swap and damage batches, end and begin again.

The cache of the emulator is the truth: while a worker counts as known by its events, the tree predicts the
reuse of that cache at the last batch that was read. Damage to batches may cost predictions, but nothing may
raise.
"""

import asyncio
from typing import Any

from fakes.gateway import ALONE_STATUS, FakeShared, VirtualTime, registry
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv_encoding import CacheGroup, Content, Encoding, SglangEncoding, VllmEncoding
from loadtest.engine.kv_events import KvEvents
from loadtest.engine.tokens import pack_ids
from policies import FleetRules
from radix import FULL_ATTENTION, AttentionProfile, chain_bytes, chain_token_ids
from radix.blocks import HASH_BYTES
from radix.residency import Residency
from router.engines.sources import Source
from router.fleet import Core
from router.fleet.kv_events.feed import Feed
from router.fleet.kv_events.follower import Follower
from router.shared import LogPort

BLOCK = 16
ROOT = 5
WINDOW = AttentionProfile("sliding_window", window_tokens=33)
ENGINES: list[tuple[AttentionProfile, Encoding, dict[str, Any]]] = [
    (
        FULL_ATTENTION,
        VllmEncoding(BLOCK, [CacheGroup("full", "full_attention")]),
        {"full_tokens": 20 * BLOCK, "match_rule": "vllm"},
    ),
    (FULL_ATTENTION, SglangEncoding(BLOCK), {"full_tokens": 14 * BLOCK, "match_rule": "sglang"}),
    (
        WINDOW,
        VllmEncoding(
            BLOCK, [CacheGroup("sliding_window", "sliding_window", 33), CacheGroup("full", "full_attention")]
        ),
        {
            "full_tokens": 20 * BLOCK,
            "swa_tokens": 10 * BLOCK,
            "attention": "sliding_window",
            "window_tokens": 33,
            "match_rule": "vllm",
            "chunk_tokens": 2 * BLOCK,
        },
    ),
]

texts = st.builds(
    lambda stem, rest: (stem + rest)[:12],
    st.sampled_from(["", "aaaaaa", "aaabbb"]),
    st.text("ab", max_size=8),
)


def ids_of(text: str) -> list[int]:
    """A letter is a block."""
    return [ord(letter) for letter in text for _ in range(BLOCK)]


class Streams(RuleBasedStateMachine):
    """An engine, the network between, and the follower."""

    @initialize(engine=st.sampled_from(ENGINES), keeps=st.sampled_from([0, 3, 1000]))
    def begin(self, engine: Any, keeps: int) -> None:
        self.profile, self.encoding, self.rules = engine
        self.keeps = keeps  # batches that can be asked for; with none the engine answers no question
        self.now_us = 1_000
        shared = FakeShared(FleetRules(block_tokens=BLOCK))
        workers = registry(shared, VirtualTime())
        local = workers.get(workers.add("http://w", capacity_tokens=1_000))
        assert local is not None
        self.fleet, self.slot = shared.fleet, local.worker.slot
        self.follower = Follower(
            local,
            local.worker,
            Core(
                shared.fleet,
                workers,
                LogPort("r", shared.publish, self.now, lambda: ALONE_STATUS, lambda: ("r",)),
            ),
            Residency(BLOCK, lambda lora, salt: ROOT),
            now_unix_s=lambda: 0.0,
            woken=lambda follower: None,
        )
        self.feed = Feed(self.follower, Source(0, "ipc://x"), self.now, lambda: 0.0, asyncio.Semaphore(1))
        self.follower.feeds.append(self.feed)
        self.sequence = self.feed.sequence
        self.seen: set[str] = set()
        self.texts: dict[bytes, str] = {}
        self.begin_process()

    def begin_process(self) -> None:
        self.sent: list[bytes] = []
        self.truths: list[dict[str, int]] = []
        self.way: list[tuple[int, bytes]] = []
        self.due: list[Any] = []
        self.new: list[bytes] = []
        events = KvEvents(
            self.encoding,
            lambda blocks: Content(blocks, pack_ids(ids_of(self.texts[blocks]))),
            self.new.append,
            self.due.append,
        )
        self.cache = KvCache(CacheRules(block_tokens=BLOCK, **self.rules), events)
        self.sequence.connected()

    def now(self) -> int:
        self.now_us += 1
        return self.now_us

    def blocks(self, text: str) -> bytes:
        blocks = chain_bytes(text.encode(), 99, 1)
        self.texts[blocks] = text
        return blocks

    def predicted(self, text: str) -> int:
        path = chain_token_ids(ids_of(text), ROOT, BLOCK)[:-HASH_BYTES]
        match = self.fleet.tree.match(path, self.profile)
        return int(match.safe[self.slot]) * BLOCK if self.slot < len(match.safe) else 0

    # The engine's actions.

    @rule(text=texts.filter(len), fate=st.sampled_from(["comes", "comes", "comes", "waits", "lost"]))
    def serve(self, text: str, fate: str) -> None:
        """Answer a request; mostly the events of its blocks arrive, and the batches that were asked for."""
        blocks, tokens = self.blocks(text), len(text) * BLOCK
        lease = self.cache.open(blocks, tokens, 0, 0.0)
        assert self.cache.admit(lease, 0.0)
        at, chunk = lease.matched_tokens, self.cache.rules.chunk_tokens or tokens
        while at < tokens:
            at = min(tokens, at + chunk)
            self.cache.computed(lease, at, 0.0)
        self.cache.close(lease, blocks, tokens, 0.0)
        self.seen.add(text)
        waiting = len(self.way)
        self.publish()
        if fate == "lost":
            del self.way[waiting:]
        elif fate == "comes":
            self.arrive(len(self.way))
            self.answer(0)

    @precondition(lambda self: len(self.sent) > 3)
    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.publish()

    def publish(self) -> None:
        while self.due:
            self.due.pop()()
        batches, self.new[:] = [*self.new], []
        truth = {text: self.cache.match_tokens(self.blocks(text), len(text) * BLOCK) for text in self.seen}
        for batch in batches:
            self.way.append((len(self.sent), batch))
            self.sent.append(batch)
            self.truths.append(truth)

    # The network between.

    @precondition(lambda self: self.way)
    @rule(count=st.integers(1, 3))
    def arrive(self, count: int) -> None:
        for _ in range(min(count, len(self.way))):
            self.sequence.came(*self.way.pop(0))
            self.tell()

    @precondition(lambda self: len(self.way) > 1)
    @rule()
    def swap(self) -> None:
        self.way[:2] = self.way[1::-1]

    @precondition(lambda self: self.way)
    @rule()
    def repeat(self) -> None:
        self.way.insert(0, self.way[0])

    @precondition(lambda self: self.way)
    @rule(share=st.floats(0, 0.99))
    def damage(self, share: float) -> None:
        number, batch = self.way[0]
        self.way[0] = number, batch[: int(share * len(batch))]

    @precondition(lambda self: len(self.sent) > 1)
    @rule()
    def reconnect(self) -> None:
        """Batches on their way are lost."""
        self.way.clear()
        self.sequence.connected()

    @precondition(lambda self: self.keeps and len(self.sent) > 3)
    @rule()
    def restart(self) -> None:
        """Without a replay endpoint, a process looks like another one that counted as far."""
        self.begin_process()

    @precondition(lambda self: self.sequence.asked is not None)
    @rule(drops=st.integers(0, 4))
    def answer(self, drops: int) -> None:
        first = self.sequence.asked
        if first is None:
            return
        if self.keeps:
            first = max(first, len(self.sent) - self.keeps)
            for number in range(first, len(self.sent)):
                if not drops or number % (drops + 1) != drops:
                    self.sequence.replayed(number, self.sent[number])
        self.sequence.ended(answered=bool(self.keeps))

    # The follower.

    def tell(self) -> None:
        while self.follower.flush():
            pass

    @invariant()
    def known_is_true(self) -> None:
        if not hasattr(self, "follower"):
            return
        self.tell()
        if not (self.sequence.live and self.follower.knows_all):
            return
        number = self.sequence.next or 0
        truth = self.truths[number - 1] if number else {}
        for text, tokens in truth.items():
            assert self.predicted(text) == tokens, text
        if not number:
            assert not self.fleet.tree.held_blocks(self.slot)


def test_history_ends_where_everything_is_told_from_the_beginning() -> None:
    """Some batches of one process are missing; the next process repeats its whole cache, which is small."""
    streams = Streams()
    streams.begin(ENGINES[0], 3)
    for text in ("aaaa", "bbbb", "abab"):
        streams.serve(text, "comes")
    streams.serve("aabb", "waits")
    streams.repeat()
    streams.damage(0.2)
    streams.serve("bb", "comes")
    streams.tell()
    assert not streams.follower.knows_all
    assert streams.predicted("bbbb")

    streams.restart()
    streams.serve("aaaa", "comes")
    streams.tell()
    assert streams.sequence.live
    assert streams.follower.knows_all
    assert not streams.predicted("bbbb")


def test_history_ends_where_the_next_process_has_said_nothing_yet() -> None:
    """Too much was missing to go on, and then the engine began again."""
    streams = Streams()
    streams.begin(ENGINES[0], 3)
    for text in ("aaaaaabaaaaa", "aaaaaaaaaaa"):
        streams.serve(text, "comes")
    streams.serve("baa", "waits")
    streams.reconnect()
    for text in ("a", "ab"):
        streams.serve(text, "waits")
    streams.answer(1)
    streams.answer(1)
    assert not streams.follower.knows_all
    assert streams.fleet.tree.held_blocks(streams.slot)

    streams.restart()
    streams.answer(0)
    streams.known_is_true()
    assert streams.follower.knows_all
    assert not streams.fleet.tree.held_blocks(streams.slot)


TestStreams = Streams.TestCase
TestStreams.settings = settings(stateful_step_count=40)
