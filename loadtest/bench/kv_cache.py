"""What the model of an engine's KV cache costs: ``python -m loadtest.bench.kv_cache``.

Forty sessions take turns in random order. Each begins with a prompt of 1,600 blocks of 64 tokens, the first
200 of them common to all, and grows by 20 blocks a turn, ten of which are the answer. A request
goes through everything that a scheduler calls: open, admit, computed after each chunk of 16,384
tokens, decoded, close. Once all sessions fit the cache together, and once it has half that room.

CPU time of the thread per request, means; and what the requests reused, since the work depends on it.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from time import thread_time

import numpy as np

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.rules import CacheRules

BLOCK_TOKENS = 64
SESSIONS = 40
FIRST_BLOCKS = 1_600
SHARED_BLOCKS = 200
TURN_BLOCKS = 20
ANSWER_BLOCKS = 10

_FIT_TOKENS = SESSIONS * 2 * FIRST_BLOCKS * BLOCK_TOKENS
_WINDOWS = CacheRules(
    full_tokens=_FIT_TOKENS,
    attention="sliding_window",
    swa_tokens=400_000,
    window_tokens=128,
    chunk_tokens=16_384,
)

CASES = {
    "full attention": CacheRules(full_tokens=_FIT_TOKENS, chunk_tokens=16_384),
    "windows, released": _WINDOWS,
    "windows, every 4096": replace(_WINDOWS, retained_interval_tokens=4_096),
    "windows, islands": replace(_WINDOWS, swa_release="islands"),
    "windows, pressure": replace(_WINDOWS, swa_release="pressure"),
    "windows, vLLM": replace(_WINDOWS, match_rule="vllm", swa_groups=6),
    "linear states": CacheRules(
        full_tokens=_FIT_TOKENS, attention="linear", state_slots=100, chunk_tokens=16_384
    ),
}
"""Rules by the name that the table gives them."""


def main() -> None:
    """Print the table."""
    print("                     all sessions fit     half that room")
    print("                     ms CPU   reused      ms CPU   reused")
    for name, rules in CASES.items():
        columns = []
        for share in (1, 2):
            seconds, hit_ratio, _ = measure(replace(rules, full_tokens=rules.full_tokens // share))
            columns.append(f"{seconds * 1e3:>6.3f} {hit_ratio:>8.3f}")
        print(f"{name:<20} {columns[0]}     {columns[1]}")


def measure(rules: CacheRules, turns: int = 60, sessions: int = SESSIONS) -> tuple[float, float, KvCache]:
    """Run all turns of all sessions on a cache.

    Returns:
        Mean CPU seconds per request, the reused share of all prompt tokens, and the cache.
    """
    cache = KvCache(rules)
    spent_s = 0.0
    prompt_tokens = reused_tokens = requests = 0
    for prompt, answered in _requests(turns, sessions):
        tokens = len(prompt) // 8 * BLOCK_TOKENS + 1
        begun_s = thread_time()
        lease = cache.open(prompt, tokens, ANSWER_BLOCKS * BLOCK_TOKENS, 0.0)
        admitted = cache.admit(lease, 0.0)
        assert admitted
        for at in range(lease.matched_tokens + rules.chunk_tokens, tokens, rules.chunk_tokens):
            cache.computed(lease, at, 0.0)
        cache.computed(lease, tokens, 0.0)
        cache.decoded(lease, ANSWER_BLOCKS * BLOCK_TOKENS, 0.0)
        cache.close(lease, answered, len(answered) // 8 * BLOCK_TOKENS, 0.0)
        spent_s += thread_time() - begun_s
        requests += 1
        prompt_tokens += tokens
        reused_tokens += lease.matched_tokens
    return spent_s / requests, reused_tokens / prompt_tokens, cache


def _requests(turns: int, sessions: int) -> Iterator[tuple[bytes, bytes]]:
    """Prompts, and the same with their answers, of all sessions in random order."""
    hashes = np.random.default_rng(1)
    length = FIRST_BLOCKS + TURN_BLOCKS * turns
    sequences = hashes.integers(0, 2**63, (sessions, length), dtype=np.uint64)
    sequences[:, :SHARED_BLOCKS] = sequences[0, :SHARED_BLOCKS]
    order = [session for session in range(sessions) for _ in range(turns)]
    random.Random(2).shuffle(order)
    done = [0] * sessions
    for session in order:
        blocks = FIRST_BLOCKS + TURN_BLOCKS * done[session]
        done[session] += 1
        path = sequences[session, : blocks + ANSWER_BLOCKS].tobytes()
        yield path[: blocks * 8], path


if __name__ == "__main__":
    main()
