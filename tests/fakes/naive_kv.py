"""The KV cache of an engine, block by block and as slowly as it is simple.

A block is the text before and in it, one letter per block. `loadtest.engine.kv` keeps its facts for runs of
blocks; this keeps them for each block: its last use, and whether its window KV is there. Rules are written as
the engines' documents state them, with sets and loops.
"""

from dataclasses import dataclass, field

from loadtest.engine.kv.rules import CacheRules


@dataclass
class NaiveBlock:
    used: int = 0
    swa: bool = False
    swa_used: int = 0


@dataclass(eq=False)
class NaiveLease:
    text: str
    prompt_tokens: int
    output_tokens: int
    end: int = 0
    matched: int = 0
    reserved: int = 0
    committed: int = 0
    swa_reserved: int = 0
    branch: int = 0
    freed: int = 0
    window: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    kept_ends: set[int] = field(default_factory=set)

    @property
    def path(self) -> list[str]:
        return [self.text[: i + 1] for i in range(self.end)]


class NaiveKv:
    def __init__(self, rules: CacheRules) -> None:
        self.rules = rules
        self.size = rules.block_tokens
        self.blocks: dict[str, NaiveBlock] = {}
        self.leases: list[NaiveLease] = []
        self.operation = 0
        self.sliding = rules.window_tokens > 0
        self.vllm = rules.match_rule == "vllm"
        self.shared = self.vllm and self.sliding
        self.sglang = self.sliding and not self.vllm and rules.swa_release == "window"
        back = rules.window_tokens - (1 if self.vllm else 0)
        self.needed = (back + self.size - 1) // self.size

    # Facts.

    @property
    def locked(self) -> set[str]:
        return {block for lease in self.leases for block in lease.path}

    @property
    def window_locked(self) -> set[str]:
        return {block for lease in self.leases for block in lease.window}

    @property
    def reserved(self) -> int:
        return sum(lease.reserved for lease in self.leases)

    @property
    def swa_reserved(self) -> int:
        return sum(lease.swa_reserved for lease in self.leases)

    @property
    def live(self) -> set[str]:
        return {text for text, block in self.blocks.items() if block.swa}

    def has_child(self, text: str) -> bool:
        return any(len(other) == len(text) + 1 and other.startswith(text) for other in self.blocks)

    # Requests.

    def found(self, text: str, prompt_tokens: int) -> tuple[int, int]:
        """Blocks found, and blocks that can be reused."""
        found = 0
        while found < (prompt_tokens - 1) // self.size and text[: found + 1] in self.blocks:
            found += 1
        if not self.sliding:
            return found, found
        for boundary in range(found, 0, -1):
            window = range(max(0, boundary - self.needed), boundary)
            complete = all(self.blocks[text[: i + 1]].swa for i in range(boundary))
            if complete or (boundary >= self.needed and all(self.blocks[text[: i + 1]].swa for i in window)):
                return found, boundary
        return found, 0

    def admit(self, text: str, prompt_tokens: int, output_tokens: int) -> NaiveLease | None:
        rules = self.rules
        found, usable = self.found(text, prompt_tokens)
        total = prompt_tokens + output_tokens
        rest = total - usable * self.size
        committed = 0
        if self.sliding:
            committed = min(total, self.needed * self.size + self.room(total))
        unlocked = [text[: i + 1] for i in range(usable) if text[: i + 1] not in self.locked]
        full = (len(unlocked) + len(self.locked)) * self.size + rest + self.reserved
        swa = committed + sum(lease.committed for lease in self.leases)
        if self.shared:
            if full + rules.swa_groups * swa > rules.full_tokens + rules.swa_groups * rules.swa_tokens:
                return None
        elif full > rules.full_tokens or swa > rules.swa_tokens:
            return None
        lease = NaiveLease(text, prompt_tokens, output_tokens, usable, usable, rest, committed)
        self.operation += 1
        self.leases.append(lease)
        if self.shared and rules.swa_release == "window":
            lease.kept_ends = {found, (prompt_tokens - 1) // self.size}
        if self.sglang and found > usable:
            lease.branch = found
        if self.sliding:
            self.move_window(lease)
            self.touch_window(lease)
        self.make_room()
        return lease

    def room(self, rest: int) -> int:
        rules = self.rules
        step = rules.chunk_tokens * (1 + self.vllm) + self.size if rules.chunk_tokens else rest
        return min(rest, max(step, rules.window_tokens + rules.decode_release_tokens + 2 * self.size))

    def computed(self, lease: NaiveLease, tokens: int) -> None:
        self.insert(lease, lease.text, tokens)
        self.make_room()

    def close(self, lease: NaiveLease, text: str, tokens: int) -> None:
        self.insert(lease, text, tokens)
        self.end(lease)

    def insert(self, lease: NaiveLease, text: str, tokens: int) -> None:
        start, end = lease.end, min(len(text), tokens // self.size)
        if start < lease.branch <= end:
            end = lease.branch
        lease.text = text
        if end <= start:
            return
        self.operation += 1
        lease.reserved -= (end - start) * self.size
        for i in range(start, end):
            self.blocks.setdefault(text[: i + 1], NaiveBlock())
        lease.end = end
        if self.sglang:
            self.insert_sglang_windows(lease, start, tokens)
        elif self.sliding:
            self.insert_windows(lease, start, tokens)

    def insert_sglang_windows(self, lease: NaiveLease, start: int, tokens: int) -> None:
        """Insert the blocks not freed yet; the branch comes alone, and the rest of its chunk later."""
        branched = lease.end == lease.branch
        self.slide(lease, start, lease.end * self.size if branched else tokens)
        for i in range(start, lease.end):
            block = self.blocks[lease.text[: i + 1]]
            if not block.swa and (i >= lease.freed or self.retained(lease, i)):
                block.swa, block.swa_used = True, self.operation
        if branched:
            lease.branch = 0
            self.slide(lease, lease.end, tokens)
        self.move_window(lease)
        self.touch_window(lease)

    def slide(self, lease: NaiveLease, held: int, tokens: int) -> None:
        """Free the blocks behind the window, after a chunk, or token by token of an answer."""
        steps = [(tokens - 1, 1)]
        if tokens > lease.prompt_tokens:
            steps = [(at, self.rules.decode_release_tokens) for at in range(lease.prompt_tokens + 1, tokens)]
        for at, step in steps:
            if at - self.rules.window_tokens >= lease.freed * self.size + step:
                lease.freed = max(lease.freed, held, at // self.size - self.needed)

    def insert_windows(self, lease: NaiveLease, start: int, tokens: int) -> None:
        keep = self.kept_from(tokens)
        dense = self.rules.swa_release == "pressure" and (self.vllm or tokens <= lease.prompt_tokens)
        for i in range(start, lease.end):
            text = lease.text[: i + 1]
            block = self.blocks[text]
            retained = self.retained(lease, i)
            if not block.swa and (dense or i >= keep or retained):
                block.swa, block.swa_used = True, self.operation
                if not dense and not retained:
                    lease.own.add(text)
        self.move_window(lease)
        if self.rules.swa_release == "window":
            self.release(lease, keep)
        self.touch_window(lease)

    def retained(self, lease: NaiveLease, i: int) -> bool:
        """True if block i is in a window that stays."""
        interval = self.rules.retained_interval_tokens
        ends = set(lease.kept_ends)
        if interval:
            ends |= {at // self.size for at in range(0, 10_000, interval)}
        return any(at - self.needed <= i < at for at in ends)

    def release(self, lease: NaiveLease, before: int) -> None:
        for text in list(lease.own):
            i = len(text) - 1
            if i < before:
                lease.own.discard(text)
                self.free(lease, text)

    def free(self, lease: NaiveLease, text: str) -> None:
        if text not in self.window_locked and not self.retained(lease, len(text) - 1):
            self.blocks[text].swa = False

    def is_continued(self, text: str, lease: NaiveLease) -> bool:
        mine = lease.text[: lease.end]
        return any(other.startswith(text) and not mine.startswith(other) for other in self.blocks)

    def decoded(self, lease: NaiveLease, tokens: int) -> None:
        self.operation += 1
        if not self.sliding or self.sglang:
            return
        released = tokens - tokens % self.rules.decode_release_tokens
        if not lease.window or self.kept_from(lease.prompt_tokens + released) < lease.end:
            return
        window = lease.window
        self.unlock_window(lease)
        if self.rules.swa_release == "window":
            self.release(lease, lease.end)
        if not self.vllm:
            for text in window:
                if not self.is_continued(text, lease):
                    self.free(lease, text)

    def end(self, lease: NaiveLease) -> None:
        self.operation += 1
        lease.reserved = lease.swa_reserved = lease.committed = 0
        if self.sliding:
            self.unlock_window(lease)
            if lease.kept_ends:
                self.release(lease, lease.end)
            self.touch_window(lease)
        for text in lease.path:
            self.blocks[text].used = self.operation
        self.leases.remove(lease)
        self.make_room()

    # Windows.

    def kept_from(self, tokens: int) -> int:
        return max(0, tokens - self.rules.window_tokens - self.size) // self.size

    def move_window(self, lease: NaiveLease) -> None:
        old = lease.window
        lease.window = set(lease.path[max(0, lease.end - self.needed) :])
        if self.vllm:
            self.came_free(old - self.window_locked)
        lease.swa_reserved = self.room(lease.prompt_tokens + lease.output_tokens - lease.end * self.size)

    def unlock_window(self, lease: NaiveLease) -> None:
        old, lease.window = lease.window, set()
        if self.vllm:
            self.came_free(old - self.window_locked)

    def came_free(self, texts: set[str]) -> None:
        for text in texts:
            if text in self.blocks:
                self.blocks[text].swa_used = self.operation

    def touch_window(self, lease: NaiveLease) -> None:
        if not self.vllm:
            for text in lease.path[max(0, lease.end - self.needed - 1) :]:
                self.blocks[text].swa_used = self.operation

    # Eviction.

    def make_room(self) -> None:
        rules = self.rules
        if self.shared:
            total = rules.full_tokens + rules.swa_groups * rules.swa_tokens
            while self.full_taken + rules.swa_groups * self.swa_taken > total:
                leaf, window = self.oldest_leaf(), self.oldest_window()
                if window is None or (
                    leaf is not None and self.blocks[leaf].used <= self.blocks[window].swa_used
                ):
                    assert leaf is not None
                    del self.blocks[leaf]
                else:
                    self.blocks[window].swa = False
            return
        while self.full_taken > rules.full_tokens:
            leaf = self.oldest_leaf()
            assert leaf is not None
            self.drop(leaf)
        while self.sliding and self.swa_taken > rules.swa_tokens:
            window = self.oldest_window()
            assert window is not None
            if self.has_child(window) or window in self.locked:
                self.blocks[window].swa = False
            else:
                self.drop(window)

    @property
    def full_taken(self) -> int:
        return len(self.blocks) * self.size + self.reserved

    @property
    def swa_taken(self) -> int:
        return len(self.live) * self.size + self.swa_reserved

    def oldest_leaf(self) -> str | None:
        leaves = [text for text in self.blocks if text not in self.locked and not self.has_child(text)]
        return min(leaves, key=lambda text: self.blocks[text].used, default=None)

    def oldest_window(self) -> str | None:
        live = self.live - self.window_locked
        return min(live, key=lambda text: (self.blocks[text].swa_used, len(text)), default=None)

    def drop(self, text: str) -> None:
        """Drop a leaf, and tombstones that are left as leaves."""
        while True:
            del self.blocks[text]
            text = text[:-1]
            if text not in self.blocks or text in self.locked or self.has_child(text):
                return
            if not self.sliding or self.blocks[text].swa:
                return
