"""The cache beside a naive model that keeps every block on its own."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.engine.cache import PrefixCache
from loadtest.engine.tokens import TOKEN_BYTES, count, pack_ids


def prompt(*blocks: int, tail: int = 1) -> bytes:
    """Blocks of four equal tokens and some odd ones behind."""
    return pack_ids([block for block in blocks for _ in range(4)] + [99] * tail)


def use(cache: PrefixCache, tokens: bytes, output_tokens: int = 0, namespace: bytes = b"") -> int:
    lease = cache.acquire(namespace, tokens, output_tokens)
    assert lease is not None
    cache.insert(lease, tokens)
    cache.release(lease)
    return lease.matched_tokens


def test_a_repeated_prompt_is_cached_up_to_the_last_whole_block() -> None:
    cache = PrefixCache(1000, 4)

    assert use(cache, prompt(1, 2, 3)) == 0
    assert use(cache, prompt(1, 2, 3)) == 12
    assert use(cache, prompt(1, 2, 4)) == 8
    assert cache.held_tokens == 16


def test_the_last_token_is_always_recomputed() -> None:
    cache = PrefixCache(1000, 4)
    use(cache, prompt(1, 2, tail=0))

    assert use(cache, prompt(1, 2, tail=0)) == 4


def test_namespaces_share_nothing() -> None:
    cache = PrefixCache(1000, 4)
    use(cache, prompt(1, 2), namespace=b"a")

    assert use(cache, prompt(1, 2), namespace=b"b") == 0
    assert use(cache, prompt(1, 2), namespace=b"a") == 8


def test_the_least_recently_used_tail_goes_first() -> None:
    """Room for ten blocks: of 4 + 4 + 4, two blocks of the oldest prompt have to go."""
    cache = PrefixCache(41, 4)
    use(cache, prompt(1, 1, 1, 1))
    use(cache, prompt(2, 2, 2, 2))
    use(cache, prompt(3, 3, 3, 3))

    assert cache.evicted_tokens == 8
    assert use(cache, prompt(3, 3, 3, 3)) == 16
    assert use(cache, prompt(2, 2, 2, 2)) == 16
    assert use(cache, prompt(1, 1, 1, 1)) == 8


def test_what_a_running_request_uses_is_not_evicted() -> None:
    cache = PrefixCache(20, 4)
    running = cache.acquire(b"", prompt(1, 1), 3)
    assert running is not None
    cache.insert(running, prompt(1, 1))

    assert cache.used_tokens == 12
    assert cache.acquire(b"", prompt(2, 2), 0) is None
    assert cache.held_tokens == 8
    cache.release(running)
    assert use(cache, prompt(2, 2, 2)) == 0
    assert cache.used_tokens == 0


def test_a_request_that_does_not_fit_evicts_nothing() -> None:
    cache = PrefixCache(20, 4)
    use(cache, prompt(1, 1, 1))

    assert cache.acquire(b"", prompt(2, 2, 2), 8) is None
    assert use(cache, prompt(1, 1, 1)) == 12


def test_two_requests_that_compute_the_same_blocks_keep_one_copy() -> None:
    cache = PrefixCache(100, 4)
    first, second = cache.acquire(b"", prompt(1, 2), 0), cache.acquire(b"", prompt(1, 2), 0)
    assert first is not None
    assert second is not None
    assert second.matched_tokens == 0
    assert cache.used_tokens == 18
    cache.insert(first, prompt(1, 2))
    cache.insert(second, prompt(1, 2))

    assert cache.held_tokens == 8
    assert cache.used_tokens == 10
    cache.release(first)
    cache.release(second)
    assert cache.used_tokens == 0


def test_clear_keeps_only_what_is_in_use() -> None:
    cache = PrefixCache(100, 4)
    use(cache, prompt(1, 2))
    running = cache.acquire(b"", prompt(1, 3), 0)
    assert running is not None

    assert not cache.clear()
    assert cache.held_tokens == 4
    cache.release(running)
    assert cache.clear()
    assert cache.held_tokens == 0


@dataclass
class NaiveLease:
    namespace: bytes
    path: int
    reserved: int
    tokens: bytes


class NaiveCache:
    """Every block is an entry: ``(namespace, tokens up to its end) -> [last use, locks]``."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.capacity = capacity_tokens * TOKEN_BYTES
        self.size = block_tokens * TOKEN_BYTES
        self.blocks: dict[tuple[bytes, bytes], list[int]] = {}
        self.reserved = 0
        self.uses = 0

    def path(self, namespace: bytes, tokens: bytes, end: int) -> list[tuple[bytes, bytes]]:
        return [(namespace, tokens[:at]) for at in range(self.size, end + 1, self.size)]

    def acquire(self, namespace: bytes, tokens: bytes, output_tokens: int) -> NaiveLease | None:
        end = 0
        for key in self.path(namespace, tokens, len(tokens) - TOKEN_BYTES):
            if key not in self.blocks:
                break
            end = len(key[1])
        self.lock(namespace, tokens, end)
        needed = len(tokens) - end + output_tokens * TOKEN_BYTES
        free = self.capacity - len(self.blocks) * self.size - self.reserved
        evictable = sum(locks == 0 for _, locks in self.blocks.values()) * self.size
        if needed > free + evictable:
            self.unlock(namespace, tokens, end)
            return None
        while needed > self.capacity - len(self.blocks) * self.size - self.reserved:
            inner = {(space, key[: -self.size]) for space, key in self.blocks}
            leaves = [key for key, (_, locks) in self.blocks.items() if not locks and key not in inner]
            del self.blocks[min(leaves, key=lambda key: self.blocks[key][0])]
        self.reserved += needed
        return NaiveLease(namespace, end, needed, tokens)

    def insert(self, lease: NaiveLease, tokens: bytes) -> None:
        end = len(tokens) - len(tokens) % self.size
        if end <= lease.path:
            return
        for key in self.path(lease.namespace, tokens, end):
            self.blocks.setdefault(key, [0, 0])
        self.lock(lease.namespace, tokens, end)
        self.unlock(lease.namespace, lease.tokens, lease.path)
        lease.reserved -= end - lease.path
        self.reserved -= end - lease.path
        lease.path, lease.tokens = end, tokens

    def release(self, lease: NaiveLease) -> None:
        self.reserved -= lease.reserved
        self.unlock(lease.namespace, lease.tokens, lease.path)

    def lock(self, namespace: bytes, tokens: bytes, end: int) -> None:
        for key in self.path(namespace, tokens, end):
            self.blocks[key][1] += 1

    def unlock(self, namespace: bytes, tokens: bytes, end: int) -> None:
        self.uses += 1
        for key in self.path(namespace, tokens, end):
            self.blocks[key][0] = self.uses
            self.blocks[key][1] -= 1


STEP = st.tuples(
    st.sampled_from([b"", b"lora"]),
    st.lists(st.integers(0, 2), min_size=1, max_size=14),
    st.integers(0, 6),
    st.sampled_from(["hold", "finish", "drop", "oldest"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=40), st.integers(8, 40))
def test_it_holds_and_evicts_what_a_block_wise_lru_would(steps: Any, capacity_tokens: int) -> None:
    """Blocks of two tokens over an alphabet of three make shared prefixes and splits likely."""
    cache, naive = PrefixCache(capacity_tokens, 2), NaiveCache(capacity_tokens, 2)
    held = []
    for namespace, ids, output, what in steps:
        tokens = pack_ids(ids)
        lease, twin = cache.acquire(namespace, tokens, output), naive.acquire(namespace, tokens, output)
        assert (lease is None) == (twin is None)
        if lease is not None and twin is not None:
            assert lease.matched_tokens * TOKEN_BYTES == twin.path
            answer = tokens + pack_ids([1] * output)
            if what != "drop":
                cache.insert(lease, tokens)
                naive.insert(twin, tokens)
            if what == "finish":
                cache.insert(lease, answer)
                naive.insert(twin, answer)
            if what == "hold":
                held.append((lease, twin))
            else:
                cache.release(lease)
                naive.release(twin)
        if what == "oldest" and held:
            lease, twin = held.pop(0)
            cache.release(lease)
            naive.release(twin)
        assert cache.held_tokens * TOKEN_BYTES == len(naive.blocks) * naive.size
        assert count(bytes(naive.reserved)) + cache.held_tokens <= capacity_tokens
        locked = sum(locks > 0 for _, locks in naive.blocks.values()) * naive.size
        assert cache.used_tokens * TOKEN_BYTES == locked + naive.reserved
