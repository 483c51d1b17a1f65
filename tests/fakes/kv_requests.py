"""Requests to a KV cache, spelled with one letter per block of four tokens."""

from typing import Any

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.listener import KvListener
from loadtest.engine.kv.rules import CacheRules
from radix import chain_bytes

BLOCK = 4


def blocks_of(text: str) -> bytes:
    """Chained hashes of a text, one per letter."""
    return chain_bytes(text.encode(), 7, 1)


def begin(cache: KvCache, text: str, output_tokens: int = 0, tail: int = 1) -> Lease | None:
    """Admit a prompt of whole blocks and ``tail`` tokens; None if there is no room."""
    lease = cache.open(blocks_of(text), len(text) * BLOCK + tail, output_tokens, 0.0)
    return lease if cache.admit(lease, 0.0) else None


def admitted(cache: KvCache, text: str, output_tokens: int = 0, tail: int = 1) -> Lease:
    """The same, when there must be room."""
    lease = begin(cache, text, output_tokens, tail)
    assert lease is not None
    return lease


def compute(cache: KvCache, lease: Lease) -> None:
    """Prefill the rest of an admitted prompt in the chunks of the cache's rules."""
    chunk = cache.rules.chunk_tokens or lease.prompt_tokens
    for at in range(lease.matched_tokens + chunk, lease.prompt_tokens, chunk):
        cache.computed(lease, at, 0.0)
    cache.computed(lease, lease.prompt_tokens, 0.0)


def run(cache: KvCache, text: str, answer: str = "") -> int:
    """Run a whole request; return its reused blocks."""
    lease = admitted(cache, text, len(answer) * BLOCK)
    compute(cache, lease)
    cache.decoded(lease, len(answer) * BLOCK, 0.0)
    cache.close(lease, blocks_of(text + answer), len(text + answer) * BLOCK, 0.0)
    assert lease.matched_tokens % BLOCK == 0
    return lease.matched_tokens // BLOCK


def matched(cache: KvCache, text: str) -> int:
    """Blocks that a prompt would reuse."""
    return cache.match_tokens(blocks_of(text), len(text) * BLOCK + 1) // BLOCK


def live(cache: KvCache, text: str) -> str:
    """One sign per block of a text on the device: ``#`` with window KV, ``.`` without."""
    path, partial, found = cache.tree.walk(cache.tree.root, blocks_of(text), len(text))
    nodes = path if partial is None else [*path, partial]
    return "".join(("#" if node.swa else ".") * node.blocks for node in nodes if node.device)[:found]


def dense(blocks: int, listener: KvListener | None = None) -> KvCache:
    """A cache for full attention."""
    return KvCache(CacheRules(full_tokens=blocks * BLOCK, block_tokens=BLOCK), listener)


def sliding(full: int, swa: int, listener: KvListener | None = None, **more: Any) -> KvCache:
    """A cache for windows of two blocks; chunks of four and releases every block unless said otherwise."""
    sizes = {"window_tokens": 2 * BLOCK, "chunk_tokens": 4 * BLOCK, "decode_release_tokens": BLOCK}
    rules = CacheRules(
        full_tokens=full * BLOCK,
        swa_tokens=swa * BLOCK,
        block_tokens=BLOCK,
        attention="sliding_window",
        **{**sizes, **more},
    )
    return KvCache(rules, listener)


def linear(full: int, slots: int, listener: KvListener | None = None, **more: Any) -> KvCache:
    """A cache for linear layers, by Marconi's rule."""
    rules = CacheRules(
        full_tokens=full * BLOCK,
        block_tokens=BLOCK,
        attention="linear",
        state_slots=slots,
        **{"match_rule": "vllm", **more},
    )
    return KvCache(rules, listener)


class Shadow:
    """Blocks that a listener believes to be on the device, by group.

    Attributes:
        groups: Hashes of blocks by group.
        clears: Times that everything went at once.
    """

    def __init__(self) -> None:
        self.groups: dict[str, set[bytes]] = {"full": set(), "sliding_window": set(), "linear": set()}
        self.clears = 0

    def stored(self, lease: Lease, start_block: int, end_block: int, group: str) -> None:
        new = _hashes(lease.blocks[start_block * 8 : end_block * 8])
        assert len(new) == end_block - start_block
        assert not self.groups[group].intersection(new)
        self.groups[group].update(new)

    def removed(self, blocks: bytes, group: str, medium: str) -> None:
        assert medium == "GPU"
        gone = _hashes(blocks)
        assert self.groups[group].issuperset(gone)
        self.groups[group].difference_update(gone)

    def cleared(self) -> None:
        self.clears += 1
        for group in self.groups.values():
            group.clear()

    def holds(self, text: str, group: str = "full") -> str:
        """One sign per block of a text: ``#`` if it is believed to be there, ``.`` if not."""
        return "".join("#" if block in self.groups[group] else "." for block in _hashes(blocks_of(text)))


def _hashes(blocks: bytes) -> list[bytes]:
    return [blocks[at : at + 8] for at in range(0, len(blocks), 8)]
