"""Why a prefix is reusable only where its windows are: the rule, proved in numbers.

A transformer small enough to recompute for every example, with the three kinds of layer whose caches differ:
full attention, sliding-window attention (query ``i`` sees keys ``i - W < j <= i``; grouped heads, rotary
positions) and gated linear attention (one recurrent state). Everything is float64, so "equal" has a tolerance
that arithmetic order explains (``SAME``) and "different" one that it cannot (``DIFFERENT``).

A worker's memory is played as engines use it: a slot that is freed is *reused*, that is, filled with the keys
and values of another prompt. So reuse at a boundary is exact only if no freed slot is read, and
`radix.safe_blocks` has to name exactly the longest such boundary: a shorter one would waste prefill, a longer
one is a pseudo-hit and a wrong answer (MiMo-V2.5 paper, arXiv:2607.13095, 3.1.3; SGLang
``mem_cache/swa_radix_cache.py``; for states PrfaaS, arXiv:2604.15039, 3.2). The engine model has to keep the
same promise after any eviction: the prefix that it reports as reused gives the answer of a full run.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.rules import CacheRules
from radix import AttentionProfile, chain_token_ids, safe_blocks

Array = NDArray[np.float64]

SAME = 1e-9
"""Largest difference of two logits (which are of order 1) that the order of summation may cause."""

DIFFERENT = 1e-4
"""Smallest one that a wrong window or state causes; seen: above 1e-2 in nearly all examples."""

STRANGER = 2**20
"""Seed of the prompt whose KV fills freed slots; no example draws it."""

BLOCK = 4
VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 31, 16, 4, 2, 8
KINDS = {
    "sliding_window": ("full", "window", "window", "full", "window"),
    "linear": ("full", "linear", "linear", "full", "linear"),
    "full": ("full", "full"),
}


@dataclass(frozen=True)
class Layer:
    """Weights of one layer."""

    kind: str
    query: Array
    key: Array
    value: Array
    gate: Array
    out: Array
    up: Array
    down: Array


@dataclass
class Memory:
    """KV of one sequence on a worker: per layer keys, values and (linear) states, by position."""

    keys: list[Array]
    values: list[Array]
    states: list[dict[int, Array]]


class Transformer:
    """A hybrid decoder with random weights; `run` continues a sequence from the memory of it."""

    def __init__(self, kind: str, window_tokens: int) -> None:
        rng = np.random.default_rng(7)

        def matrix(rows: int, columns: int) -> Array:
            return np.asarray(rng.normal(size=(rows, columns)) / np.sqrt(rows))

        self.window_tokens = window_tokens
        self.embedding = rng.normal(size=(VOCABULARY, WIDTH))
        self.layers = [
            Layer(
                kind=layer,
                query=matrix(WIDTH, HEADS * HEAD_DIM) * 2.0,
                key=matrix(WIDTH, KV_HEADS * HEAD_DIM) * 2.0,
                value=matrix(WIDTH, KV_HEADS * HEAD_DIM),
                gate=matrix(WIDTH, HEADS),
                out=matrix(HEADS * HEAD_DIM, WIDTH),
                up=matrix(WIDTH, 2 * WIDTH),
                down=matrix(2 * WIDTH, WIDTH),
            )
            for layer in KINDS[kind]
        ]

    def run(self, tokens: list[int], start: int = 0, memory: Memory | None = None) -> tuple[Array, Memory]:
        """Logits of ``tokens[start:]``, given that a memory holds the rest; and the memory of it all."""
        n = len(tokens)
        x = self.embedding[tokens[start:]]
        shape = (n, KV_HEADS, HEAD_DIM)
        after = Memory([np.zeros(shape) for _ in self.layers], [np.zeros(shape) for _ in self.layers], [])
        for index, layer in enumerate(self.layers):
            keys, values = after.keys[index], after.values[index]
            states: dict[int, Array] = {0: np.zeros((HEADS, HEAD_DIM, HEAD_DIM))}
            if memory is not None:
                keys[:start], values[:start] = memory.keys[index][:start], memory.values[index][:start]
                states |= memory.states[index]
            h = normalised(x)
            query = rotated((h @ layer.query).reshape(-1, HEADS, HEAD_DIM), start)
            keys[start:] = rotated((h @ layer.key).reshape(-1, KV_HEADS, HEAD_DIM), start)
            values[start:] = (h @ layer.value).reshape(-1, KV_HEADS, HEAD_DIM)
            mixed = np.empty((n - start, HEADS * HEAD_DIM))
            decay = 1 / (1 + np.exp(-(h @ layer.gate) - 2.0))
            for row, position in enumerate(range(start, n)):
                seen = slice(
                    max(0, position - self.window_tokens + 1) if layer.kind == "window" else 0, position + 1
                )
                if layer.kind == "linear":
                    key = np.repeat(keys[position], HEADS // KV_HEADS, axis=0)
                    value = np.repeat(values[position], HEADS // KV_HEADS, axis=0)
                    states[position + 1] = (
                        decay[row][:, None, None] * states[position] + key[:, :, None] * value[:, None, :]
                    )
                    mixed[row] = (query[row][:, None, :] @ states[position + 1]).ravel() / HEAD_DIM
                else:
                    mixed[row] = attended(query[row], keys[seen], values[seen]).ravel()
            after.states.append(states)
            x = x + mixed @ layer.out
            x = x + np.tanh(normalised(x) @ layer.up) @ layer.down
        return normalised(x) @ self.embedding.T / np.sqrt(WIDTH), after


def normalised(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6))


def rotated(x: Array, start: int) -> Array:
    """Rotary position embedding of the two halves of each head, for positions from start on."""
    half = HEAD_DIM // 2
    angles = np.arange(start, start + len(x))[:, None, None] * 100.0 ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate(
        [x[..., :half] * cosine - x[..., half:] * sine, x[..., half:] * cosine + x[..., :half] * sine],
        axis=-1,
    )


def attended(query: Array, keys: Array, values: Array) -> Array:
    """Softmax attention of one query; two query heads share a key head."""
    shared = HEADS // KV_HEADS
    scores = np.einsum("hd,jhd->hj", query, np.repeat(keys, shared, axis=1)) / np.sqrt(HEAD_DIM)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("hj,jhd->hd", weights, np.repeat(values, shared, axis=1)))


@lru_cache
def model(kind: str, window_tokens: int) -> Transformer:
    return Transformer(kind, window_tokens)


def some_tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, count)]


def kept(transformer: Transformer, memory: Memory, ends: list[int], interval: int) -> Memory:
    """Return the memory after the engine has released everything outside the windows of the ends.

    Windows and states stay at ends and at multiples of the interval; a freed slot belongs to another prompt.
    """
    n = memory.keys[0].shape[0]
    stays = {*ends, *(range(interval, n + 1, interval) if interval else ())}
    valid = np.zeros(n, dtype=bool)
    for end in stays:
        valid[max(0, end - transformer.window_tokens) : end] = True
    _, other = transformer.run(some_tokens(STRANGER, n))
    left = Memory([], [], [])
    for layer, keys, values, states, other_keys, other_values in zip(
        transformer.layers,
        memory.keys,
        memory.values,
        memory.states,
        other.keys,
        other.values,
        strict=True,
    ):
        held = np.ones(n, dtype=bool) if layer.kind == "full" else valid
        left.keys.append(np.where(held[:, None, None], keys, other_keys))
        left.values.append(np.where(held[:, None, None], values, other_values))
        newest = {p: states[max(q for q in (0, *stays) if q <= p)] for p in states}
        left.states.append(newest if layer.kind == "linear" else {})
    return left


def error_at(transformer: Transformer, prompt: list[int], boundary: int, memory: Memory) -> float:
    """Largest difference between the logits behind a boundary reused from memory and those of a full run."""
    expected, _ = transformer.run(prompt)
    found, _ = transformer.run(prompt, boundary, memory)
    return float(np.abs(found - expected[boundary:]).max())


@given(
    kind=st.sampled_from(["sliding_window", "linear", "full"]),
    window=st.integers(4, 11),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True),
    matched=st.integers(1, 6),
    interval_blocks=st.sampled_from([0, 0, 3, 4]),
    seed=st.integers(0, 2**16),
)
def test_the_safe_boundary_is_the_longest_one_from_which_outputs_equal_a_full_recomputation(
    kind: str, window: int, lengths: list[int], matched: int, interval_blocks: int, seed: int
) -> None:
    """Sequences on one path ended at some blocks; another prompt agrees with the longest for some blocks.

    Windows kept at fixed positions are shorter than two blocks here: the rule takes such a position for
    itself and does not join its tail to others, which loses less than a window where one is longer than that.
    """
    longest = max(lengths)
    matched = min(matched, longest)
    interval = 0 if kind == "full" else interval_blocks * BLOCK
    if interval:
        window = min(window, 2 * BLOCK - 1)
    transformer = model(kind, window)
    cached = some_tokens(seed, longest * BLOCK)
    prompt = cached[: matched * BLOCK] + some_tokens(seed + 1, 3)
    profile = AttentionProfile(kind, window if kind == "sliding_window" else 0, interval)  # type: ignore[arg-type]
    _, memory = transformer.run(cached)
    memory = kept(transformer, memory, [blocks * BLOCK for blocks in lengths], interval)

    safe = safe_blocks(matched, lengths, profile, BLOCK)

    assert error_at(transformer, prompt, safe * BLOCK, memory) < SAME
    for longer in range(safe + 1, matched + 1):
        assert error_at(transformer, prompt, longer * BLOCK, memory) > DIFFERENT


@pytest.mark.parametrize("spoilt", ["zeroed", "another prompt's", "of the right tokens, computed alone"])
def test_a_match_without_its_window_is_a_pseudo_hit(spoilt: str) -> None:
    """All tokens match and all full-attention KV is there; only the last W positions of windows are not.

    Recomputing the window from its own tokens alone does not help: a layer's KV there depends on the
    layers below, which looked further back.
    """
    transformer = model("sliding_window", 8)
    cached = some_tokens(1, 24)
    prompt = cached + some_tokens(2, 4)
    _, memory = transformer.run(cached)
    assert error_at(transformer, prompt, 24, memory) < SAME

    source = some_tokens(3, 24)
    if spoilt.startswith("of the right"):
        source = [0] * 16 + cached[16:]
    _, other = transformer.run(source)
    for index, layer in enumerate(transformer.layers):
        if layer.kind == "window":
            for own, foreign in ((memory.keys, other.keys), (memory.values, other.values)):
                own[index][16:] = 0.0 if spoilt == "zeroed" else foreign[index][16:]

    assert error_at(transformer, prompt, 24, memory) > DIFFERENT


@settings(max_examples=20)
@given(checkpoint=st.integers(1, 23), boundary=st.integers(1, 23), seed=st.integers(0, 2**16))
def test_a_linear_state_continues_exactly_where_it_was_taken_and_nowhere_else(
    checkpoint: int, boundary: int, seed: int
) -> None:
    assume(boundary >= checkpoint)
    transformer = model("linear", 0)
    cached = some_tokens(seed, 24)
    _, memory = transformer.run(cached)
    memory = kept(transformer, memory, [checkpoint], 0)

    error = error_at(transformer, cached, boundary, memory)

    assert error < SAME if boundary == checkpoint else error > DIFFERENT


@settings(max_examples=20)
@given(window=st.integers(4, 8), cut=st.integers(1, 30), seed=st.integers(0, 2**16))
def test_prefill_in_chunks_needs_no_more_than_a_window_of_the_chunks_before(
    window: int, cut: int, seed: int
) -> None:
    """An engine may release out-of-window KV at every chunk end, not only when the request ends."""
    transformer = model("sliding_window", window)
    prompt = some_tokens(seed, 32)
    _, first_chunk = transformer.run(prompt[:cut])

    assert error_at(transformer, prompt, cut, kept(transformer, first_chunk, [cut], 0)) < SAME


class Slots:
    """The KV of one worker's blocks, by hash. The cache's tree decides which part is left."""

    def __init__(self, cache: KvCache, transformer: Transformer) -> None:
        self._cache = cache
        self._transformer = transformer
        self._kept: dict[bytes, list[tuple[Array, Array]]] = {}

    def written(self, blocks: bytes, memory: Memory) -> None:
        """A request has computed its blocks: the KV of each layer is there for those that the tree keeps."""
        for at in range(len(blocks) // 8):
            span = slice(at * BLOCK, (at + 1) * BLOCK)
            self._kept[blocks[8 * at : 8 * at + 8]] = [
                (keys[span], values[span]) for keys, values in zip(memory.keys, memory.values, strict=True)
            ]

    def read(self, blocks: bytes, tokens: int) -> Memory:
        """KV of a sequence from the held blocks; the rest is another prompt's."""
        held: dict[str, set[bytes]] = {"full": set(), "window": set()}
        for node in self._cache.tree.nodes():
            hashes = [node.key[at : at + 8] for at in range(0, len(node.key), 8)]
            held["full"].update(hashes if node.device else ())
            held["window"].update(hashes if node.swa else ())
        _, memory = self._transformer.run(some_tokens(STRANGER, tokens))
        for at in range(tokens // BLOCK):
            block, span = blocks[8 * at : 8 * at + 8], slice(at * BLOCK, (at + 1) * BLOCK)
            for index, layer in enumerate(self._transformer.layers):
                if block in held[layer.kind]:
                    memory.keys[index][span], memory.values[index][span] = self._kept[block][index]
        return memory


@pytest.mark.parametrize("match_rule", ["sglang", "vllm"])
@settings(max_examples=25)
@given(
    window=st.integers(4, 9),
    interval=st.sampled_from([0, 16]),
    swa_release=st.sampled_from(["window", "pressure"]),
    full_blocks=st.integers(14, 30),
    prompts=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(0, 2), st.integers(1, 9)),
        min_size=4,
        max_size=9,
    ),
)
def test_what_the_engine_model_lets_a_request_reuse_gives_the_answer_of_a_full_run(
    match_rule: str,
    window: int,
    interval: int,
    swa_release: str,
    full_blocks: int,
    prompts: list[tuple[int, int, int, int]],
) -> None:
    """Prompts share stems, pools are small, prefill is in chunks of two blocks: nearly everything is evicted.

    Each prompt is so many tokens of one of three stems and an ending of its own; a few tokens answer it.
    """
    transformer = model("sliding_window", window)
    cache = KvCache(
        CacheRules(
            full_tokens=full_blocks * BLOCK,
            block_tokens=BLOCK,
            attention="sliding_window",
            swa_tokens=max(full_blocks // 2, 12) * BLOCK,
            window_tokens=window,
            chunk_tokens=2 * BLOCK,
            match_rule=match_rule,  # type: ignore[arg-type]
            retained_interval_tokens=interval,
            swa_release=swa_release,  # type: ignore[arg-type]
        )
    )
    slots = Slots(cache, transformer)
    for stem, shared, ending, length in prompts:
        prompt = some_tokens(stem, 30)[:shared] + some_tokens(100 + ending, length)
        sequence = prompt + some_tokens(200 + ending, 5)
        blocks = chain_token_ids(prompt, 7, BLOCK)
        lease = cache.open(blocks, len(prompt), 6, 0.0)
        assert cache.admit(lease, 0.0)
        if lease.matched_tokens:
            memory = slots.read(blocks, len(prompt))
            assert error_at(transformer, prompt, lease.matched_tokens, memory) < SAME

        for done in range(lease.matched_tokens + 2 * BLOCK, len(prompt) + 2 * BLOCK, 2 * BLOCK):
            cache.computed(lease, min(done, len(prompt)), 0.0)
        final = chain_token_ids(sequence, 7, BLOCK)
        cache.close(lease, final, len(sequence), 0.0)
        slots.written(final, transformer.run(sequence)[1])
