"""Blocks of an engine by definition: sets of prefixes; every answer is computed from scratch.

A prefix is the text before and in a block, one letter a token. `radix.Residency` keeps bits of runs and
computes changes only; this keeps counts by name and computes everything.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from radix.residency import BlocksRemoved, BlocksStored, CacheCleared, EngineEvent

DEVICE = "GPU"
MEDIA = (DEVICE, "CPU", "DISK")


@dataclass(frozen=True)
class NaiveGroup:
    """One cache group of the engine; ``need`` blocks in a row before a boundary, 0 for all of them."""

    number: int | None
    kind: str | None
    window_tokens: int | None = None

    def need(self, block_tokens: int) -> int:
        if self.kind == "mamba":
            return 1
        if self.kind == "sliding_window":
            assert self.window_tokens is not None
            return (self.window_tokens - 1 + block_tokens - 1) // block_tokens
        return 0

    def need_below(self, block_tokens: int) -> int:
        """The same of the tiers below the device: one block more if a window ends where a block begins."""
        if self.kind == "sliding_window":
            assert self.window_tokens is not None
            return (self.window_tokens + block_tokens - 1) // block_tokens
        return self.need(block_tokens)


@dataclass
class NaiveRank:
    """Contents of one rank: counts of each prefix on each lane, and the prefixes whose place is known."""

    held: Counter[tuple[NaiveGroup, str, str]] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)

    def settle(self) -> None:
        """Forget the places of prefixes that nothing held begins with."""
        alive = {prefix for (_, _, prefix), n in self.held.items() if n and prefix in self.known}
        self.known = {prefix for prefix in self.known if any(p.startswith(prefix) for p in alive)}


@dataclass
class NaiveEngines:
    """The engines of one worker.

    Attributes:
        size: Tokens of the engine's blocks.
        tree_size: Tokens of the tree's.
        met: Groups that have stored something.
    """

    size: int
    tree_size: int
    ranks: dict[int, NaiveRank] = field(default_factory=dict)
    met: list[NaiveGroup] = field(default_factory=list)

    def prefixes(self, text: str) -> list[str]:
        """The prefixes of a text that end with a block."""
        return [text[:stop] for stop in range(self.size, len(text) + 1, self.size)]

    def handle(self, rank: int, prefix: str) -> int:
        """A number that differs on each rank; negative ones too, as SGLang's are."""
        number = 0
        for letter in prefix:
            number = number * 5 + ord(letter) - 95
        return number * 4 + rank if len(prefix) % 8 else -(number * 4 + rank)

    def store(
        self,
        rank: int,
        group: NaiveGroup,
        medium: str,
        text: str,
        skip: int,
        kept: Sequence[bool] | None = None,
    ) -> BlocksStored:
        """A group stores the blocks of a text behind the first few; if given, only those that are kept."""
        of = self.ranks.setdefault(rank, NaiveRank())
        all_of = self.prefixes(text)
        parent = all_of[skip - 1] if skip else None
        span = all_of[skip:]
        stored = span if kept is None else [p for p, keep in zip(span, kept, strict=False) if keep]
        if group not in self.met:
            self.met.append(group)
        if len(stored) == len(span) and (parent is None or parent in of.known):
            of.known |= set(stored)
        of.held.update((group, medium, prefix) for prefix in stored)
        return BlocksStored(
            [self.handle(rank, prefix) for prefix in stored],
            None if parent is None else self.handle(rank, parent),
            [ord(letter) for letter in text[skip * self.size : len(all_of) * self.size]],
            self.size,
            group.number,
            group.kind,
            group.window_tokens,
            medium,
        )

    def offload(self, rank: int, group: NaiveGroup, medium: str, prefixes: Iterable[str]) -> BlocksStored:
        """A group stores blocks without naming their tokens."""
        of, stored = self.ranks.setdefault(rank, NaiveRank()), list(prefixes)
        if group not in self.met:
            self.met.append(group)
        of.held.update((group, medium, prefix) for prefix in stored)
        handles = [self.handle(rank, prefix) for prefix in stored]
        return BlocksStored(handles, None, [], 0, group.number, group.kind, group.window_tokens, medium)

    def remove(
        self, rank: int, group: NaiveGroup | None, medium: str, prefixes: Iterable[str]
    ) -> BlocksRemoved:
        """A group, or all of them, loses one copy of each block."""
        of, removed = self.ranks.setdefault(rank, NaiveRank()), list(prefixes)
        for prefix in removed:
            for one in self.met if group is None else [group]:
                if of.held[one, medium, prefix]:
                    of.held[one, medium, prefix] -= 1
        number = None if group is None else group.number
        return BlocksRemoved([self.handle(rank, prefix) for prefix in removed], number, medium)

    def clear(self, rank: int) -> EngineEvent:
        self.lose(rank)
        return CacheCleared()

    def lose(self, rank: int) -> None:
        self.ranks[rank] = NaiveRank()

    def settle(self) -> None:
        for of in self.ranks.values():
            of.settle()

    def truth(self) -> "NaiveTruth":
        """The present truth."""
        reached: set[str] = set()
        valid: set[str] = set()
        for of in self.ranks.values():
            by_rule = {prefix for prefix in of.known if self._goes_on(of, prefix)}
            windows = any(group.need(self.size) for group in self.met)
            reached |= {prefix for prefix in of.known if self._reaches(of, prefix)} if windows else by_rule
            valid |= by_rule if windows else set()
        return NaiveTruth(self.tree_size, reached, valid)

    def _holds(self, of: NaiveRank, group: NaiveGroup, prefix: str, *media: str) -> bool:
        return any(of.held[group, medium, prefix] for medium in media)

    def _reaches(self, of: NaiveRank, prefix: str, *media: str) -> bool:
        """All groups that must hold a prefix from the beginning do; if none must, its place is known."""
        demanding = [group for group in self.met if not group.need(self.size)]
        return all(
            self._holds(of, group, part, *(media or MEDIA))
            for group in demanding
            for part in self.prefixes(prefix)
        )

    def _device_goes_on(self, of: NaiveRank, prefix: str) -> bool:
        return self._reaches(of, prefix, DEVICE) and all(
            self._holds(of, group, part, DEVICE)
            for group in self.met
            if group.need(self.size)
            for part in self.prefixes(prefix)[-group.need(self.size) :]
        )

    def _goes_on(self, of: NaiveRank, prefix: str) -> bool:
        """As vLLM looks: the longest prefix on the device first, then the blocks behind it in lower tiers."""
        if self._device_goes_on(of, prefix):
            return True
        parts = self.prefixes(prefix)
        if any(group.kind == "mamba" for group in self.met) and self._reaches(of, prefix, DEVICE):
            return False
        begin = max(
            (n for n in range(len(parts)) if not n or self._device_goes_on(of, parts[n - 1])), default=0
        )
        return all(
            self._holds(of, group, part, *MEDIA[1:])
            for group in self.met
            for part in parts[max(begin, len(parts) - (group.need_below(self.size) or len(parts))) :]
        )

    def texts(self) -> set[str]:
        """Everything that was ever named."""
        named = {prefix for of in self.ranks.values() for prefix in of.known}
        return named | {prefix for of in self.ranks.values() for _, _, prefix in of.held}


@dataclass(frozen=True)
class NaiveTruth:
    """Prefixes that the engines of a worker can reuse.

    Attributes:
        tree_size: Tokens of the tree's blocks.
        reached: Prefixes that any rank holds.
        valid: Those from which it can go on.
    """

    tree_size: int
    reached: set[str]
    valid: set[str]

    def matched(self, text: str) -> int:
        """Tree blocks of a text that any rank holds."""
        size = self.tree_size
        whole = {prefix[: len(prefix) // size * size] for prefix in self.reached}
        starts = {prefix[:stop] for prefix in whole for stop in range(size, len(prefix) + 1, size)}
        return sum(text[:stop] in starts for stop in range(size, len(text) + 1, size))

    def safe(self, text: str) -> int:
        """The deepest tree block of a text behind which, or inside the next, an engine can go on."""
        size = self.tree_size
        depths = {
            len(prefix) // size
            for prefix in self.valid
            if text.startswith(prefix[: len(prefix) // size * size])
        }
        return max(depths, default=0)
