"""The front door, on the device alone."""

from itertools import count

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.rules import CacheRules
from radix import chain_bytes

BLOCK = 4


def prompt(text: str) -> tuple[bytes, int]:
    """A prompt of one block per letter, and a token more."""
    return chain_bytes(text.encode(), 7, 1), len(text) * BLOCK + 1


def begin(cache: KvCache, text: str, output_tokens: int = 0) -> Lease | None:
    blocks, tokens = prompt(text)
    lease = cache.open(blocks, tokens, output_tokens, 0.0)
    return lease if cache.admit(lease, 0.0) else None


def run(cache: KvCache, text: str, answer: str = "", chunk: int = 0) -> int:
    """A whole request; returns what it reused, in blocks."""
    lease = begin(cache, text, len(answer) * BLOCK)
    assert lease is not None
    for at in range(lease.matched_tokens + chunk, lease.prompt_tokens, chunk or 1000):
        cache.computed(lease, at, 0.0)
    cache.computed(lease, lease.prompt_tokens, 0.0)
    cache.close(lease, chain_bytes((text + answer).encode(), 7, 1), len(text + answer) * BLOCK, 0.0)
    assert lease.matched_tokens % BLOCK == 0
    return lease.matched_tokens // BLOCK


def dense(blocks: int) -> KvCache:
    return KvCache(CacheRules(full_tokens=blocks * BLOCK, block_tokens=BLOCK))


def sliding(full: int, swa: int, window: int = 8, chunk: int = 8, **more: object) -> KvCache:
    rules = CacheRules(
        full_tokens=full * BLOCK,
        block_tokens=BLOCK,
        attention="sliding_window",
        swa_tokens=swa * BLOCK,
        window_tokens=window,
        chunk_tokens=chunk,
        decode_release_tokens=BLOCK,
        **more,  # type: ignore[arg-type]
    )
    return KvCache(rules)


def test_a_repeated_prompt_is_reused_up_to_the_last_whole_block() -> None:
    cache = dense(100)

    assert run(cache, "abc") == 0
    assert run(cache, "abc") == 3
    assert run(cache, "abd") == 2
    assert cache.held_tokens == 4 * BLOCK


def test_the_last_token_is_always_recomputed() -> None:
    cache = dense(100)
    run(cache, "abc")
    blocks, _ = prompt("abc")

    assert cache.match_tokens(blocks, 3 * BLOCK) == 2 * BLOCK
    assert cache.match_tokens(blocks, 3 * BLOCK + 1) == 3 * BLOCK


def test_the_least_recently_used_tail_goes_first() -> None:
    """Ten blocks: of 4 + 4 + 4 and a token, three blocks of the oldest prompt have to go."""
    cache = dense(10)
    run(cache, "aaaa")
    run(cache, "bbbb")
    run(cache, "cccc")

    assert cache.evicted_tokens == 3 * BLOCK
    assert run(cache, "cccc") == 4
    assert run(cache, "bbbb") == 4
    assert run(cache, "aaaa") == 1


def test_what_a_running_request_uses_is_not_evicted() -> None:
    cache = dense(5)
    running = begin(cache, "aa", output_tokens=3)
    assert running is not None
    cache.computed(running, 2 * BLOCK + 1, 0.0)

    assert cache.used_tokens == 12
    assert begin(cache, "bb") is None
    assert cache.held_tokens == 8
    cache.abort(running, 0.0)
    assert run(cache, "bb") == 0
    assert cache.used_tokens == 0


def test_an_abort_gives_back_everything_once() -> None:
    cache = sliding(100, 100)
    lease = begin(cache, "abcd", output_tokens=9)
    assert lease is not None
    cache.abort(lease, 0.0)
    cache.abort(lease, 0.0)

    assert (cache.used_tokens, cache.swa_used_tokens) == (0, 0)


def test_a_match_ends_where_a_whole_window_is_there() -> None:
    """The window is two blocks: at the end of the first request three are live, its middle is not."""
    cache = sliding(100, 100)
    run(cache, "abcdefgh", chunk=8)

    assert run(cache, "abcdefghij") == 8
    assert run(cache, "abcdeX") == 0


def test_islands_keep_the_ends_of_chunks_reusable() -> None:
    cache = sliding(100, 100, chunk=16, swa_release="islands")
    run(cache, "abcdefgh", chunk=16)

    assert run(cache, "abcdX") == 4


def test_under_pressure_only_the_oldest_windows_go() -> None:
    """A prompt of eight blocks stays reusable anywhere until others need its windows."""
    cache = sliding(100, 12, chunk=8, swa_release="pressure")
    run(cache, "abcdefgh", chunk=8)
    assert run(cache, "abcdX", chunk=8) == 4

    run(cache, "ABCDEFGH", chunk=8)
    assert run(cache, "abcY", chunk=8) == 0


def test_a_full_cache_keeps_its_accounts_through_many_requests() -> None:
    cache = sliding(60, 20)
    for turn in count():
        text = "abcdefgh"[turn % 5 :] * 2 + str(turn % 3)
        run(cache, text, answer="xyz", chunk=8)
        for pool in (cache.device.full, cache.device.swa):
            assert pool.free >= 0
            assert pool.used == 0
        if turn == 200:
            break
    assert cache.clear()
    assert cache.held_tokens == cache.swa_held_tokens == 0
