"""HiCache: each rule by itself, then everything at once beside a naive model."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.l3 import BlockSizes, L3Pool, L3Settings, build_pool
from loadtest.engine.kv.l3_client import L3Client
from loadtest.engine.kv.lease import Lease
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tiers import HiCache, HiCacheSettings
from loadtest.engine.kv.tree import Node, RadixTree

SIZE = 64
BYTES = 1000
WINDOW_BYTES = 6000
DENSE = CacheRules(full_tokens=100 * SIZE, chunk_tokens=64 * SIZE)
SLIDING = replace(
    DENSE, attention="sliding_window", window_tokens=2 * SIZE, swa_tokens=90 * SIZE, swa_release="window"
)


def sizes(rules: CacheRules) -> BlockSizes:
    return BlockSizes(SIZE, BYTES, WINDOW_BYTES if rules.window_blocks else 0, rules.window_blocks)


class Worker:
    """One rank, driven a request at a time."""

    def __init__(
        self, rules: CacheRules = DENSE, pool: L3Pool | None = None, network: float = 1e12, **options: Any
    ) -> None:
        tree = RadixTree(states=rules.state_slots > 0)
        self.client = None if pool is None else L3Client(pool, read_bytes_per_s=network)
        self.tiers = HiCache(
            rules,
            HiCacheSettings(**{"host_ratio": 3.0, "prefetch_threshold_tokens": 4 * SIZE, **options}),
            tree,
            sizes(rules),
            client=self.client,
        )
        self.cache = KvCache(rules, tree=tree, tiers=self.tiers)
        self.now_s = 0.0

    def open(self, prompt: bytes) -> Lease:
        return self.cache.open(prompt, len(prompt) // 8 * SIZE + 1, 1, self.now_s)

    def serve(self, prompt: bytes) -> Lease:
        """Run a request to its end, waiting for its prefetch."""
        self.now_s += 1.0
        lease = self.open(prompt)
        self.now_s = max(self.now_s, lease.ready_s)
        assert self.cache.admit(lease, self.now_s)
        self.cache.computed(lease, lease.prompt_tokens, self.now_s)
        self.cache.close(lease, prompt, lease.prompt_tokens, self.now_s)
        return lease


def sequence(seed: int, blocks: int) -> bytes:
    return Random(seed).randbytes(8 * blocks)


def shared(rules: CacheRules = DENSE, **options: Any) -> L3Pool:
    return build_pool(
        L3Settings(**{"nodes": 1, "latency_s": 0.0, "node_bytes_per_s": 1e15, **options}), sizes(rules)
    )


@pytest.mark.parametrize("rules", [DENSE, SLIDING])
def test_what_the_device_evicts_comes_back_from_the_host(rules: CacheRules) -> None:
    """Two prompts of 80 blocks on a device of 100, then the first again."""
    worker = Worker(rules)
    first, second = sequence(1, 80), sequence(2, 80)
    worker.serve(first)
    worker.serve(second)
    lease = worker.serve(first)

    assert lease.matched_tokens == 80 * SIZE
    assert lease.host_tokens > 0
    assert lease.pool_tokens == 0
    windows = 2 if rules is SLIDING else 0
    assert lease.load_bytes == lease.host_tokens // SIZE * BYTES + windows * WINDOW_BYTES
    assert worker.tiers.counters.loaded_bytes == lease.load_bytes
    assert worker.tiers.counters.loaded_tokens == lease.host_tokens


def test_write_through_copies_at_once_selective_at_the_second_use_and_back_at_eviction() -> None:
    prompts = [sequence(seed, 40) for seed in range(4)]

    def copied(policy: str, served: list[bytes]) -> int:
        worker = Worker(write_policy=policy)
        for prompt in served:
            worker.serve(prompt)
        return worker.tiers.counters.backed_up_tokens // SIZE

    again = prompts[0] + sequence(9, 10)
    assert copied("write_through", [prompts[0]]) == 40
    assert copied("write_through_selective", [prompts[0]]) == 0
    assert copied("write_through_selective", [prompts[0], again]) == 40, "what is new was used once"
    assert copied("write_back", prompts[:2]) == 0
    assert copied("write_back", prompts[:3]) == 21, "the device has 100 blocks, the last one in part"


def test_the_host_evicts_its_least_recently_used_leaves_that_are_not_on_the_device() -> None:
    """Host of 200 blocks, device of 100: the oldest of four prompts of 60 goes first, from its tail."""
    worker = Worker(host_ratio=2.0)
    prompts = [sequence(seed, 60) for seed in range(4)]
    for prompt in prompts:
        worker.serve(prompt)
    host = worker.tiers.host

    assert host.full.held == 200 * SIZE
    assert host.full.evicted == 40 * SIZE
    assert worker.serve(prompts[0]).matched_tokens == 20 * SIZE


def test_a_run_that_cannot_be_copied_is_lost_with_what_the_host_has_below_it() -> None:
    """The host has ten blocks: it takes the last six of the first prompt, but never the 54 before them."""
    worker = Worker(host_tokens=10 * SIZE, write_policy="write_back")
    first = sequence(1, 60)
    worker.serve(first)
    worker.serve(sequence(2, 45))
    assert worker.tiers.host.full.held == 6 * SIZE
    worker.serve(sequence(3, 99))

    assert not [node for node in worker.cache.tree.nodes() if first.startswith(node.key[:8])]
    assert worker.serve(first).matched_tokens == 0


@pytest.mark.parametrize("kind", ["grouped", "pooled"])
@pytest.mark.parametrize("rules", [DENSE, SLIDING])
def test_another_worker_prefetches_from_the_pool(rules: CacheRules, kind: str) -> None:
    pool = shared(rules, kind=kind)
    here, there = Worker(rules, pool), Worker(rules, pool)
    prompt = sequence(1, 60)
    here.serve(prompt)
    longer = prompt + sequence(2, 20)
    lease = there.serve(longer)

    assert lease.matched_tokens == lease.host_tokens == lease.pool_tokens == 60 * SIZE
    assert there.tiers.counters.prefetched_tokens == 60 * SIZE
    assert there.client is not None
    assert there.client.read_bytes == 60 * BYTES + rules.window_blocks * WINDOW_BYTES
    assert there.client.written_blocks == 20, "only what the pool did not have"
    assert here.serve(longer).pool_tokens == 20 * SIZE


def test_less_than_the_threshold_is_not_fetched() -> None:
    """Four blocks are the threshold."""
    for blocks, fetched in ((3, 0), (4, 4)):
        pool = shared()
        Worker(pool=pool).serve(sequence(1, blocks))
        lease = Worker(pool=pool).serve(sequence(1, blocks) + sequence(2, 10))
        assert lease.pool_tokens == fetched * SIZE


@pytest.mark.parametrize(
    ("policy", "wait_s", "blocks"),
    [("best_effort", 0.0, 0), ("wait_complete", 6.0, 60), ("timeout", 2.0 + 0.375, 20)],
)
def test_a_request_waits_for_its_prefetch_as_the_policy_says(policy: str, wait_s: float, blocks: int) -> None:
    """60 blocks at 10 a second: the timeout of 3,840 tokens is 2 + 0.1 * 3.75 s, when 23 have arrived."""
    pool = shared()
    Worker(pool=pool).serve(sequence(1, 60))
    worker = Worker(pool=pool, network=10 * BYTES, prefetch_policy=policy, prefetch_batch_blocks=10)
    worker.now_s = 100.0
    lease = worker.open(sequence(1, 60) + sequence(2, 9))

    assert lease.ready_s == pytest.approx(100.0 + wait_s)
    assert worker.cache.admit(lease, lease.ready_s)
    assert lease.pool_tokens == blocks * SIZE
    assert worker.tiers.host.full.reserved == 0


def test_best_effort_uses_what_arrived_while_the_request_queued_anyway() -> None:
    pool = shared()
    Worker(pool=pool).serve(sequence(1, 60))
    worker = Worker(pool=pool, network=10 * BYTES, prefetch_policy="best_effort", prefetch_batch_blocks=10)
    lease = worker.open(sequence(1, 60) + sequence(2, 9))
    assert worker.cache.admit(lease, 3.0)

    assert lease.pool_tokens == 30 * SIZE
    assert worker.tiers.counters.prefetches_stopped == 1
    assert worker.client is not None
    assert worker.client.read_blocks == 30, "the rest is not sent"


def test_a_prefetch_that_is_stopped_before_its_window_brings_a_sliding_window_model_nothing() -> None:
    pool = shared(SLIDING)
    Worker(SLIDING, pool).serve(sequence(1, 60))
    worker = Worker(
        SLIDING, pool, network=10 * BYTES, prefetch_policy="best_effort", prefetch_batch_blocks=10
    )
    lease = worker.open(sequence(1, 60) + sequence(2, 9))
    assert worker.cache.admit(lease, 3.0)

    assert lease.matched_tokens == 0
    assert worker.tiers.counters.dropped_tokens > 0
    assert worker.tiers.host.full.held == worker.tiers.host.full.reserved == 0
    assert worker.tiers.host.swa.held == worker.tiers.host.swa.reserved == 0


def test_prefetches_under_way_are_limited_to_a_share_of_the_hosts_room() -> None:
    """Host of 200 beyond a device of 100: 0.8 of the difference is 80 blocks, which two of 40 fill."""
    pool = shared()
    prompts = [sequence(seed, 40) for seed in range(3)]
    writer = Worker(pool=pool)
    for prompt in prompts:
        writer.serve(prompt)
    worker = Worker(pool=pool, host_ratio=2.0)
    leases = [worker.open(prompt + sequence(9, 5)) for prompt in prompts]

    assert worker.tiers.host.full.reserved == 80 * SIZE
    for lease in leases:
        worker.cache.abort(lease, 1.0)
    assert worker.tiers.host.full.reserved == 0


def test_a_prefetch_takes_no_more_than_the_host_has_room_for() -> None:
    """Host of 130 blocks, of which 100 are on the device as well and cannot go: 30 are left of 60."""
    pool = shared()
    Worker(pool=pool).serve(sequence(1, 60))
    worker = Worker(pool=pool, host_tokens=130 * SIZE, prefetch_limit_ratio=9.0)
    worker.serve(sequence(2, 98))
    lease = worker.open(sequence(1, 60) + sequence(3, 5))

    assert worker.tiers.host.full.reserved == 32 * SIZE
    assert worker.cache.admit(lease, lease.ready_s)
    assert lease.pool_tokens == 32 * SIZE


def test_a_host_no_larger_than_the_device_prefetches_nothing() -> None:
    pool = shared()
    Worker(pool=pool).serve(sequence(1, 60))

    assert Worker(pool=pool, host_ratio=1.0).serve(sequence(1, 60)).matched_tokens == 0


def test_an_aborted_request_gives_back_the_room_of_its_prefetch_and_its_anchor() -> None:
    pool = shared()
    Worker(pool=pool).serve(sequence(1, 60))
    worker = Worker(pool=pool)
    worker.serve(sequence(1, 20))
    lease = worker.open(sequence(1, 60))
    assert worker.tiers.host.full.reserved > 0
    worker.cache.abort(lease, worker.now_s)
    worker.cache.abort(lease, worker.now_s)

    assert worker.tiers.host.full.reserved == 0
    assert all(node.host_locks == 0 for node in worker.cache.tree.nodes())
    assert worker.cache.clear()


def test_case_1_window_kv_that_the_host_lacks_is_copied_when_a_prefill_ends() -> None:
    """The host's window pool was emptied by others; the device still has the window."""
    worker = Worker(SLIDING)
    first = sequence(1, 20)
    worker.serve(first)
    host = worker.tiers.host
    host.make_window_room(host.swa.capacity)
    assert [node.blocks for node in worker.cache.tree.nodes() if node.swa] == [2]
    assert not any(node.host_swa for node in worker.cache.tree.nodes())
    worker.serve(first + sequence(2, 1))

    copied = [(node.start, node.end) for node in worker.cache.tree.nodes() if node.host_swa]
    assert min(copied)[0] == 18, "the block before the new one has its window again"
    assert max(copied)[1] == 21


def test_case_2_window_kv_that_the_device_lacks_is_loaded_with_the_next_match() -> None:
    """Others' windows have displaced half of that of an inner boundary; its full KV never left the device."""
    worker = Worker(replace(SLIDING, full_tokens=1000 * SIZE))
    first = sequence(1, 20)
    worker.serve(first)
    worker.serve(first + sequence(2, 5))
    fork = first + sequence(3, 5)
    others = (sequence(seed, 20) for seed in range(4, 44))
    while worker.cache.match_tokens(fork, 25 * SIZE + 1):
        worker.serve(next(others))
    lease = worker.serve(fork)

    assert lease.matched_tokens == lease.host_tokens == 20 * SIZE
    assert lease.load_bytes == WINDOW_BYTES


def test_case_3_a_prefix_that_the_device_serves_stays_in_the_pool_if_it_is_kept_alive() -> None:
    """Without keep-alive the pool's LRU drops the head, since its worker never reads it there."""

    def head_in_pool(*, keep_alive: bool) -> int:
        pool = shared(memory_tokens=120 * SIZE)
        worker = Worker(pool=pool, keep_alive=keep_alive)
        others = Worker(pool=pool)
        turn = sequence(1, 40)
        worker.serve(turn)
        for seed in range(10):
            others.serve(sequence(100 + seed, 30))
            turn += sequence(200 + seed, 1)
            worker.serve(turn)
        return Worker(pool=pool).serve(turn).pool_tokens

    assert head_in_pool(keep_alive=True) == 50 * SIZE
    assert head_in_pool(keep_alive=False) == 0


def test_case_4_dense_windows_that_the_device_retains_reach_the_host_and_the_pool() -> None:
    """A fork at block 20 of a prompt with windows retained every 16 blocks goes on from 16."""
    rules = replace(SLIDING, retained_interval_tokens=16 * SIZE)
    pool = shared(rules)
    prompt = sequence(1, 60)
    Worker(rules, pool).serve(prompt)

    fork = prompt[: 8 * 20] + sequence(2, 30)
    assert Worker(rules, pool).serve(fork).pool_tokens == 16 * SIZE
    assert Worker(SLIDING, shared(SLIDING)).serve(fork).pool_tokens == 0


def test_a_dead_node_costs_the_timeout_and_the_prefill() -> None:
    pool = shared(sdk_timeout_s=0.05)
    Worker(pool=pool).serve(sequence(1, 60))
    pool.fail(0, 10.0)
    worker = Worker(pool=pool, prefetch_policy="wait_complete")
    worker.now_s = 10.0
    lease = worker.open(sequence(1, 60))

    assert lease.ready_s == pytest.approx(10.05)
    assert worker.cache.admit(lease, lease.ready_s)
    assert lease.matched_tokens == 0


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="room"):
        HiCacheSettings(host_ratio=0.0)
    with pytest.raises(ValueError, match="negative"):
        HiCacheSettings(prefetch_timeout_base_s=-1.0)


def states(pool: L3Pool | None = None, **options: Any) -> Worker:
    """A worker of a linear model with two states on the device, in prompts of whole blocks."""
    rules = replace(DENSE, attention="linear", state_slots=2)
    return Worker(rules, pool, **options)


def test_a_linear_model_goes_on_from_a_state_in_host_memory() -> None:
    """Three sessions take the device's two states; the first one's comes back from the host."""
    worker = states()
    first = sequence(1, 20)
    for seed in (1, 2, 3):
        worker.serve(sequence(seed, 20))
    assert worker.cache.match_tokens(first, 30 * SIZE) == 0

    lease = worker.serve(first + sequence(9, 4))

    assert (lease.device_tokens, lease.host_tokens) == (0, 20 * SIZE)
    assert lease.load_bytes - WINDOW_BYTES in (0, 20 * BYTES)
    assert worker.cache.match_tokens(first + sequence(9, 4), 30 * SIZE) == 24 * SIZE


def test_a_linear_model_reads_kv_and_state_of_another_worker_from_the_pool() -> None:
    rules = replace(DENSE, attention="linear", state_slots=2)
    pool = shared(rules)
    turn = sequence(1, 20)
    states(pool).serve(turn)

    lease = states(pool).serve(turn + sequence(2, 4))

    assert lease.pool_tokens == 20 * SIZE
    assert states(pool).serve(turn[: 8 * 10] + sequence(3, 4)).pool_tokens == 0, "there is no state inside"


def test_a_state_that_is_written_back_outlives_its_place_on_the_device() -> None:
    worker = states(write_policy="write_back")
    first = sequence(1, 20)
    for seed in (1, 2, 3):
        worker.serve(sequence(seed, 20))

    assert worker.serve(first + sequence(9, 4)).host_tokens == 20 * SIZE


# ---- everything at once
# ---------------------------------------------------------------------------------------


class Witness(HiCache):
    """Checks that KV is copied only from where it is."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.hanging = False
        hold, hold_window = self.host.hold, self.host.hold_window

        def held(node: Node) -> bool:
            assert node.device or self.hanging
            return hold(node)

        def window_held(node: Node) -> bool:
            assert node.swa or node.state is not None or self.hanging
            return hold_window(node)

        self.host.hold, self.host.hold_window = held, window_held  # type: ignore[method-assign]

    def _hang(self, blocks: bytes, start: int, end: int) -> int:
        self.hanging = True
        new = super()._hang(blocks, start, end)
        self.hanging = False
        return new


def usable(cache: KvCache, prompt: bytes, blocks: int) -> int:
    """The longest boundary with full KV before it and a window behind it, block by block."""
    full: list[bool] = []
    live: list[bool] = []
    node = cache.tree.root
    while len(full) < blocks:
        at = 8 * len(full)
        child = node.children.get(prompt[at : at + 8])
        if child is None:
            break
        for offset in range(0, len(child.key), 8):
            if len(full) == blocks or child.key[offset : offset + 8] != prompt[at + offset : at + offset + 8]:
                break
            full.append(child.device or child.host)
            last = offset + 8 == len(child.key) or not cache.tree.states
            live.append(last and (child.swa or child.state is not None or child.host_swa))
        else:
            node = child
            continue
        break
    needed = cache.rules.window_blocks
    return max(
        end for end in range(len(full) + 1) if all(full[:end]) and all(live[max(0, end - needed) : end])
    )


def check(cache: KvCache, tiers: HiCache) -> None:
    """The accounts equal the tree's, within the room, and every node is somewhere."""
    nodes = list(cache.tree.nodes())
    for pool, held in (
        (tiers.host.full, sum(node.blocks for node in nodes if node.host)),
        (tiers.host.swa, sum(1 if cache.tree.states else node.blocks for node in nodes if node.host_swa)),
        (cache.device.full, sum(node.blocks for node in nodes if node.device)),
        (cache.device.swa, sum(node.blocks for node in nodes if node.swa)),
    ):
        assert pool.held == held * SIZE
        assert 0 <= pool.held + pool.reserved <= pool.capacity
    for node in nodes:
        assert node.device or node.host
        assert node.host or not node.host_swa
        assert node.device or not node.swa
        assert node.parent is not None
        assert node.device <= (node.parent.device or node.parent is cache.tree.root)


def chain(path: str) -> bytes:
    return b"".join(xxh3_64_digest(path[: end + 1].encode()) for end in range(len(path)))


PATHS = ("a" * 20, "aaaaabbbbbbbb", "aaaaabbbbcccccccc", "aab", "bbbbbbbbbbb", "bbbbbbaaaaaaaa", "aaaaabbbb")
actions = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(PATHS),
        st.sampled_from(
            ["serve", "serve", "serve", "open", "open", "admit", "admit", "finish", "abort", "fail", "clear"]
        ),
        st.integers(0, 20),
    ),
    min_size=15,
    max_size=50,
)


@given(
    actions,
    st.sampled_from(["full", "window", "pressure", "states"]),
    st.sampled_from(["write_through", "write_through_selective", "write_back"]),
    st.sampled_from(["best_effort", "wait_complete", "timeout"]),
    st.sampled_from(["none", "grouped", "pooled"]),
    st.sampled_from([0.3, 1.5, 4.0]),
    st.booleans(),
)
def test_what_a_lease_reuses_is_there_in_full_and_window_whatever_happens(
    script: list[tuple[int, str, str, int]],
    release: str,
    write_policy: str,
    prefetch_policy: str,
    kind: str,
    host_ratio: float,
    named: bool,
) -> None:
    """Two workers of 30 blocks with one pool of 60; requests overlap and are aborted, nodes fail."""
    rules = CacheRules(full_tokens=30 * SIZE, chunk_tokens=8 * SIZE)
    if release == "states":
        rules = replace(rules, attention="linear", state_slots=5, retained_interval_tokens=8 * SIZE)
    elif release != "full":
        rules = replace(
            rules,
            attention="sliding_window",
            window_tokens=2 * SIZE,
            swa_tokens=24 * SIZE,
            swa_release=release,  # type: ignore[arg-type]
            retained_interval_tokens=8 * SIZE,
        )
    pool = None
    if kind != "none":
        disk = 20 * SIZE if kind == "grouped" else 0
        pool = shared(
            rules,
            kind=kind,
            nodes=2,
            memory_tokens=30 * SIZE,
            disk_tokens=disk,
            group_tokens=2 * SIZE,
            rank_loss_ratio=0.02,
        )
    workers = []
    for _ in range(2):
        tree = RadixTree(states=rules.state_slots > 0)
        options = HiCacheSettings(
            host_ratio=host_ratio,
            write_policy=write_policy,  # type: ignore[arg-type]
            prefetch_policy=prefetch_policy,  # type: ignore[arg-type]
            prefetch_threshold_tokens=2 * SIZE,
            prefetch_batch_blocks=2,
        )
        client = None if pool is None else L3Client(pool, read_bytes_per_s=5 * BYTES)
        tiers = Witness(rules, options, tree, sizes(rules), client=client)
        workers.append((KvCache(rules, tree=tree, tiers=tiers), tiers))
    queues: list[list[tuple[Lease, bytes]]] = [[], []]
    running: list[list[tuple[Lease, bytes]]] = [[], []]

    def admit(which: int, now_s: float) -> None:
        cache, tiers = workers[which]
        lease, prompt = queues[which].pop(0)
        tiers.settle(lease, now_s)
        expected = usable(cache, prompt, (lease.prompt_tokens - 1) // SIZE)
        if cache.admit(lease, now_s):
            assert lease.matched_tokens == expected * SIZE
            assert lease.pool_tokens <= lease.host_tokens
            running[which].append((lease, prompt))
        else:
            queues[which].append((lease, prompt))
        check(cache, tiers)

    def finish(which: int, now_s: float) -> None:
        cache, tiers = workers[which]
        lease, prompt = running[which].pop()
        for end in range(lease.matched_tokens + 8 * SIZE, lease.prompt_tokens, 8 * SIZE):
            cache.computed(lease, end, now_s)
            check(cache, tiers)
        cache.computed(lease, lease.prompt_tokens, now_s)
        cache.close(lease, prompt, lease.prompt_tokens, now_s)

    for step, (which, path, action, extra) in enumerate(script):
        cache, tiers = workers[which]
        now_s = float(step)
        if action in ("serve", "open"):
            prompt, session = chain(path), path.encode() if named else b""
            lease = cache.open(prompt, len(path) * SIZE + extra, 40, now_s, session)
            queues[which].insert(0, (lease, prompt))
        if action in ("serve", "admit") and queues[which]:
            admit(which, now_s + 10.0 * (action == "serve"))
        if action in ("serve", "finish") and running[which]:
            finish(which, now_s)
        if action == "abort":
            for lease, _ in (running[which] or queues[which])[:1]:
                cache.abort(lease, now_s)
            del (running[which] or queues[which])[:1]
        if action == "fail" and pool is not None:
            pool.drain(extra % 2, now_s) if extra > 10 else pool.fail(extra % 2, now_s)
            pool.recover(extra % 2, now_s)
        if action == "clear" and extra > 15:
            cache.clear()
        check(cache, tiers)
    for which, (cache, tiers) in enumerate(workers):
        for lease, _ in queues[which] + running[which]:
            cache.abort(lease, 1e3)
        check(cache, tiers)
        assert tiers.host.full.reserved == tiers.host.swa.reserved == 0
        assert all(not node.locks and not node.host_locks for node in cache.tree.nodes())
        assert cache.clear()
        assert tiers.host.full.held == tiers.host.swa.held == 0
