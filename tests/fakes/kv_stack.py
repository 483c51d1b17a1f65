"""A KV cache that is as simple as can be: whole blocks in one LRU, one pool, no windows."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class FakeLease:
    blocks: list[bytes]
    prompt_tokens: int
    output_tokens: int
    ready_s: float = 0.0
    device_tokens: int = 0
    host_tokens: int = 0
    pool_tokens: int = 0
    load_bytes: int = 0
    room_tokens: int = 0
    admitted: bool = False
    ended: bool = False
    computed: list[int] = field(default_factory=list)
    decoded: list[int] = field(default_factory=list)

    @property
    def matched_tokens(self) -> int:
        return self.device_tokens + self.host_tokens


class FakeCache:
    """Evicts blocks that no running request uses, least recently used first."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.block_tokens = block_tokens
        self.held: dict[bytes, int] = {}
        self.leases: list[FakeLease] = []
        self.prefetch_s = 0.0
        self.load_bytes = 0

    @property
    def held_tokens(self) -> int:
        return len(self.held) * self.block_tokens

    @property
    def used_tokens(self) -> int:
        return sum(lease.room_tokens for lease in self.leases)

    def match_tokens(self, blocks: bytes, prompt_tokens: int) -> int:
        matched = 0
        for block in _split(blocks)[: (prompt_tokens - 1) // self.block_tokens]:
            if block not in self.held:
                break
            matched += self.block_tokens
        return matched

    def open(
        self, blocks: bytes, prompt_tokens: int, output_tokens: int, now_s: float, session: bytes = b""
    ) -> FakeLease:
        lease = FakeLease(_split(blocks), prompt_tokens, output_tokens, ready_s=now_s + self.prefetch_s)
        lease.load_bytes = self.load_bytes
        return lease

    def admit(self, lease: FakeLease, now_s: float) -> bool:
        assert not lease.admitted
        assert now_s >= lease.ready_s
        room = lease.prompt_tokens + lease.output_tokens
        if self.used_tokens + room > self.capacity_tokens:
            return False
        lease.device_tokens = self.match_tokens(b"".join(lease.blocks), lease.prompt_tokens)
        lease.room_tokens = room
        lease.admitted = True
        self.leases.append(lease)
        return True

    def computed(self, lease: FakeLease, prompt_tokens: int, now_s: float) -> None:
        assert not lease.ended
        lease.computed.append(prompt_tokens)
        self._hold(lease.blocks[: prompt_tokens // self.block_tokens])

    def decoded(self, lease: FakeLease, tokens: int, now_s: float) -> None:
        assert not lease.ended
        lease.decoded.append(tokens)

    def close(self, lease: FakeLease, blocks: bytes, tokens: int, now_s: float) -> None:
        assert not self._end(lease).ended
        self._hold(_split(blocks)[: tokens // self.block_tokens])
        self._end(lease).ended = True

    def abort(self, lease: FakeLease, now_s: float) -> None:
        self._end(lease).ended = True

    def _end(self, lease: FakeLease) -> FakeLease:
        lease.room_tokens = 0
        if lease in self.leases:
            self.leases.remove(lease)
        return lease

    def _hold(self, blocks: list[bytes]) -> None:
        for block in reversed(blocks):
            self.held.pop(block, None)
            self.held[block] = 0
        while self.held_tokens > self.capacity_tokens:
            del self.held[next(iter(self.held))]


def _split(blocks: bytes) -> list[bytes]:
    return [blocks[at : at + 8] for at in range(0, len(blocks), 8)]
