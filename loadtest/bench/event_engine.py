"""An engine that only publishes KV events, from a cache that is always full.

Sessions share a system prompt. Each turn stores a prefill in chunks and a few decoded blocks; the blocks that
it displaces are removed one event each, the deepest of the least recently used session first, as in vLLM.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from radix.residency import BlocksRemoved, BlocksStored, EngineEvent

BLOCK_TOKENS = 16
CHUNK_BLOCKS = 64
SYSTEM_BLOCKS = 96
WINDOW_TOKENS = 128
SESSIONS = 400


@dataclass(frozen=True, slots=True)
class Mix:
    """One kind of engine."""

    name: str
    tree_tokens: int
    windows: int = 0
    keeps_all: bool = False


MIXES = (
    Mix("dense", 16),
    Mix("dense, 256", 256),
    Mix("hybrid", 16, windows=3),
    Mix("hybrid, 256", 256, windows=3),
    Mix("hybrid, all", 16, windows=3, keeps_all=True),
)


@dataclass(slots=True)
class Engine:
    """Cache of ``capacity`` blocks in the full group."""

    mix: Mix
    capacity: int
    random: Random
    sessions: dict[int, list[int]] = field(default_factory=dict)
    windows: dict[int, list[int]] = field(default_factory=dict)
    system: list[int] = field(default_factory=list)
    held: int = 0
    handles: int = 0

    def events(self, count: int) -> list[EngineEvent]:
        """The next events, at least ``count``."""
        events: list[EngineEvent] = []
        while len(events) < count:
            events += self.turn()
        return events

    def fill(self) -> list[EngineEvent]:
        """Events until it is full."""
        events: list[EngineEvent] = []
        while self.held < self.capacity - 10 * CHUNK_BLOCKS:
            events += self.turn()
        return events

    def turn(self) -> Iterator[EngineEvent]:
        """Events of one turn of a session."""
        if not self.system:
            yield from self._store(self.system, SYSTEM_BLOCKS)
        number = self.random.randrange(SESSIONS)
        session = self.sessions.pop(number, None)
        if session is None or len(session) > 1500:
            if session:
                yield from self._evict(number, session, len(session))
            session = [self.system[-1]]
        self.sessions[number] = session
        blocks = self.random.choice((4, 16, 64, 128))
        yield from self._room(blocks + 8, number)
        while blocks:
            chunk = min(blocks, CHUNK_BLOCKS)
            blocks -= chunk
            yield from self._store(session, chunk)
            yield from self._window(number, session, chunk if self.mix.keeps_all else 0)
        yield from self._window(number, session, 0 if self.mix.keeps_all else WINDOW_TOKENS // BLOCK_TOKENS)
        for _ in range(self.random.randrange(8)):
            yield from self._store(session, 1)

    def _room(self, blocks: int, but: int) -> Iterator[EngineEvent]:
        while self.held + blocks > self.capacity:
            oldest = next(number for number in self.sessions if number != but)
            session = self.sessions[oldest]
            yield from self._evict(oldest, session, min(len(session) - 1, blocks))
            if len(session) == 1:
                del self.sessions[oldest]

    def _evict(self, number: int, session: list[int], blocks: int) -> Iterator[EngineEvent]:
        windows = self.windows.pop(number, [])
        for handle in windows:
            for group in range(1, self.mix.windows + 1):
                yield BlocksRemoved([handle], group, "GPU")
        for _ in range(min(blocks, len(session) - 1)):
            self.held -= 1
            yield BlocksRemoved([session.pop()], 0, "GPU")

    def _store(self, session: list[int], blocks: int) -> Iterator[EngineEvent]:
        parent = session[-1] if session else None
        hashes = [self.random.getrandbits(64) for _ in range(blocks)]
        ids = [self.random.randrange(150_000) for _ in range(blocks * BLOCK_TOKENS)]
        session += hashes
        self.held += blocks
        yield BlocksStored(hashes, parent, ids, BLOCK_TOKENS, 0, "full_attention", None, "GPU")

    def _window(self, number: int, session: list[int], blocks: int) -> Iterator[EngineEvent]:
        """The windows keep the last blocks of a session; before, the oldest of those it kept go."""
        if not blocks or not self.mix.windows:
            return
        held = self.windows.setdefault(number, [])
        gone, held[:] = (
            (held, []) if not self.mix.keeps_all else (held[: max(0, len(held) - 256)], held[-256:])
        )
        for handle in gone:
            for group in range(1, self.mix.windows + 1):
                yield BlocksRemoved([handle], group, "GPU")
        hashes = session[-blocks:]
        held += hashes
        ids = [0] * (BLOCK_TOKENS * (blocks + (not self.mix.keeps_all)))
        for group in range(1, self.mix.windows + 1):
            yield BlocksStored(hashes, None, ids, BLOCK_TOKENS, group, "sliding_window", WINDOW_TOKENS, "GPU")
