"""Shared pools: hits of each client, and the cost of a failed node."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv.l3 import (
    Absence,
    BlockSizes,
    GroupedPool,
    L3Pool,
    L3Settings,
    PooledMemory,
    build_pool,
)
from loadtest.simulator.generated import generate_agentic

DENSE = BlockSizes(64, 1000)
SLIDING = BlockSizes(64, 1000, window_block_bytes=6000, window_blocks=2)


def sequence(seed: int, blocks: int) -> bytes:
    return Random(seed).randbytes(8 * blocks)


def pool(sizes: BlockSizes = DENSE, **settings: object) -> L3Pool:
    return build_pool(L3Settings(**{"nodes": 4, **settings}), sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["grouped", "pooled"])
def test_what_one_worker_writes_another_finds_and_writes_only_the_rest(kind: str) -> None:
    shared = pool(kind=kind)
    turn = sequence(1, 100)

    assert shared.store(b"", turn, 0, 60, (), 0.0).blocks == 60
    assert shared.find(b"", turn, 0, 100, 1.0).end_block == 60
    assert shared.find(b"", turn, 20, 100, 1.0).end_block == 60
    assert shared.store(b"", turn, 40, 100, (), 1.0).blocks == 40
    assert shared.find(b"other layout", turn, 0, 100, 1.0).end_block == 0


@pytest.mark.parametrize("kind", ["grouped", "pooled"])
def test_a_sliding_window_model_reads_only_up_to_a_stored_window(kind: str) -> None:
    """Windows are two blocks: 60 has one, 100 half of one, and a reader may start inside one."""
    shared = pool(SLIDING, kind=kind)
    turn = sequence(1, 100)
    shared.store(b"", turn, 0, 60, [(58, 60)], 0.0)
    shared.store(b"", turn, 60, 100, [(99, 100)], 0.0)

    assert shared.find(b"", turn, 0, 100, 0.0).end_block == 60, "one window block at 100 is not a window"
    assert shared.find(b"", turn, 0, 59, 0.0).end_block == 0
    assert shared.find(b"", turn, 59, 100, 0.0).end_block == 59
    assert shared.find(b"", turn, 58, 100, 0.0).end_block == 60


def test_a_first_block_with_its_window_data_is_complete_though_shorter_than_the_window() -> None:
    shared = pool(SLIDING)
    turn = sequence(1, 10)
    shared.store(b"", turn, 0, 1, [(0, 1)], 0.0)

    assert shared.find(b"", turn, 0, 10, 0.0).end_block == 1


def test_the_least_recently_used_blocks_go_first_and_a_query_keeps_them_alive() -> None:
    """One node of 100 blocks: a head that is only queried stays, one without queries goes."""
    shared = pool(nodes=1, memory_tokens=6400)
    kept, forgotten, third = sequence(1, 40), sequence(2, 40), sequence(3, 40)
    shared.store(b"", kept, 0, 40, (), 0.0)
    shared.store(b"", forgotten, 0, 40, (), 1.0)
    shared.touch(b"", kept, 0, 40, 2.0)
    shared.store(b"", third, 0, 40, (), 3.0)

    assert shared.find(b"", kept, 0, 40, 4.0).end_block == 40
    assert shared.find(b"", forgotten, 0, 40, 4.0).end_block == 20
    assert shared.held_bytes == 100 * DENSE.block_bytes
    assert shared.evicted_bytes == 20 * DENSE.block_bytes


def test_a_head_that_nobody_reads_is_evicted_before_its_tail() -> None:
    """Per-object LRU: the tail alone is then useless to others."""
    shared = pool(nodes=1, memory_tokens=6400)
    turn = sequence(1, 80)
    shared.store(b"", turn, 0, 40, (), 0.0)
    shared.store(b"", sequence(2, 40), 0, 40, (), 1.0)
    shared.store(b"", turn, 40, 80, (), 2.0)

    assert shared.find(b"", turn, 0, 80, 3.0).end_block == 20
    assert shared.find(b"", turn, 40, 80, 3.0).end_block == 80


def test_blocks_are_gone_when_they_were_not_used_for_their_time_to_live() -> None:
    shared = pool(ttl_s=10.0)
    turn = sequence(1, 40)
    shared.store(b"", turn, 0, 40, (), 0.0)
    shared.touch(b"", turn, 0, 20, 8.0)

    assert shared.find(b"", turn, 0, 40, 10.0).end_block == 40
    assert shared.find(b"", turn, 0, 40, 11.0).end_block == 20


def test_blocks_on_disk_are_read_at_the_disks_rate_and_promoted() -> None:
    """40,000 bytes at 10,000 bytes/s take four seconds, the second time none."""
    shared = pool(nodes=1, memory_tokens=40 * 64, disk_tokens=40 * 64, disk_bytes_per_s=1e4, latency_s=0.0)
    first, second = sequence(1, 40), sequence(2, 40)
    shared.store(b"", first, 0, 40, (), 0.0)
    shared.store(b"", second, 0, 40, (), 1.0)

    assert shared.find(b"", first, 0, 40, 2.0).end_block == 40
    assert shared.read(b"", first, 0, 40, 2.0) == pytest.approx(6.0)
    assert shared.read(b"", first, 0, 40, 10.0) == pytest.approx(10.0, abs=1e-3)
    assert shared.read(b"", second, 0, 40, 20.0) == pytest.approx(24.0), "it made room for the first"


def test_related_sessions_are_spread_over_the_nodes() -> None:
    """Sessions of 200 agents of six products: the busiest of eight nodes holds at most 1.5 times the mean."""
    shared = pool(nodes=8, memory_tokens=1 << 40)
    assert isinstance(shared, GroupedPool)
    for number, session in enumerate(generate_agentic(users=64, sessions=200, seed=1).sessions):
        for request in session.requests:
            blocks = len(request.held) // 8
            shared.store(b"", request.held, 0, blocks, (), 0.0, f"s{number}".encode())
    held = [node.store.memory_bytes for node in shared._nodes]

    assert max(held) <= 1.5 * sum(held) / 8


def test_all_of_a_session_is_on_one_node_with_a_copy_of_the_head_that_it_shares() -> None:
    shared = pool(nodes=8)
    assert isinstance(shared, GroupedPool)
    head = sequence(0, 20)
    first, second = head + sequence(1, 20), head + sequence(2, 20)
    shared.store(b"", first, 0, 40, (), 0.0, b"a")
    assert [node.store.memory_bytes for node in shared._nodes if node.store.memory_bytes] == [40_000]
    other = next(
        name for name in (b"b", b"c", b"d", b"e") if not shared.find(b"", first, 0, 40, 0.0, name).end_block
    )

    assert shared.store(b"", second, 0, 40, (), 0.0, other).blocks == 40
    assert shared.find(b"", second, 0, 40, 1.0, other).end_block == 40
    assert shared.find(b"", second, 0, 40, 1.0, b"a").end_block == 20


def sessions(shared: L3Pool, count: int = 40) -> dict[bytes, bytes]:
    """Store sessions of 40 blocks each."""
    turns = {f"s{seed}".encode(): sequence(seed, 40) for seed in range(count)}
    for name, turn in turns.items():
        shared.store(b"", turn, 0, 40, (), 0.0, name)
    return turns


def found(shared: L3Pool, turns: dict[bytes, bytes], now_s: float) -> int:
    """Number of sessions that are there as a whole."""
    return sum(shared.find(b"", turn, 0, 40, now_s, name).end_block == 40 for name, turn in turns.items())


def test_a_node_that_leaves_as_planned_hands_its_sessions_over_and_gets_them_back() -> None:
    shared = pool(nodes=4)
    assert isinstance(shared, GroupedPool)
    turns = sessions(shared)
    shared.drain(1, 1.0)
    assert shared._nodes[1].store.memory_bytes == 0
    assert shared.moved_bytes == pytest.approx(10 * 40_000, rel=0.2)
    assert found(shared, turns, 2.0) == 40
    for name, turn in turns.items():
        shared.store(b"", turn + sequence(999, 10), 40, 50, (), 3.0, name)

    shared.recover(1, 4.0)

    assert found(shared, turns, 5.0) == 40
    assert shared._nodes[1].store.memory_bytes == pytest.approx(10 * 50_000, rel=0.2), "with what came since"


@pytest.mark.parametrize("lost", [True, False])
def test_sessions_of_a_failed_node_go_on_elsewhere_and_return_with_what_was_written(lost: bool) -> None:
    shared = pool(nodes=4, detection_s=3.0)
    turns = sessions(shared)
    shared.fail(2, 1.0, lost=lost)
    assert 25 <= found(shared, turns, 2.0) < 40
    missing = [name for name, turn in turns.items() if not shared.find(b"", turn, 0, 40, 5.0, name).end_block]
    rewritten = missing[0]
    assert shared.store(b"", turns[rewritten], 0, 40, (), 6.0, rewritten).blocks == 40

    shared.recover(2, 7.0)

    assert shared.find(b"", turns[rewritten], 0, 40, 8.0, rewritten).end_block == 40
    assert found(shared, turns, 8.0) == (40 - len(missing) + 1 if lost else 40)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["store", "store", "leave", "return", "fail"]),
            st.integers(0, 5),
            st.integers(1, 30),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_what_is_found_was_stored_and_planned_moves_lose_nothing(
    script: list[tuple[str, int, int]], planned: bool
) -> None:
    """Six growing sessions on four nodes, of which one stays."""
    shared = pool(SLIDING, nodes=4, detection_s=0.0)
    turns = [sequence(0, 5) + sequence(seed + 1, 60) for seed in range(6)]
    stored = [0] * 6
    for step, (action, number, blocks) in enumerate(script):
        now_s, name = float(step), f"s{number}".encode()
        if action == "store":
            end = min(stored[number] + blocks, 65)
            shared.store(b"", turns[number], stored[number], end, [(max(end - 2, 0), end)], now_s, name)
            stored[number] = end
        elif action == "return":
            shared.recover(number % 3, now_s)
        elif action == "leave" or planned:
            shared.drain(number % 3, now_s)
        else:
            shared.fail(number % 3, now_s)
        for other, end in enumerate(stored):
            reach = shared.find(b"", turns[other], 0, 65, now_s + 0.5, f"s{other}".encode()).end_block
            assert reach <= max(end, 5), "its own, or the head that all share"
            assert reach >= end or not planned


def test_a_pool_without_nodes_holds_nothing_and_says_so() -> None:
    shared = pool(nodes=1)
    turns = sessions(shared, 3)
    shared.drain(0, 1.0)

    assert found(shared, turns, 2.0) == 0
    assert shared.store(b"", sequence(9, 4), 0, 4, (), 2.0, b"new").blocks == 0


def test_requests_of_no_session_are_grouped_by_what_they_begin_with() -> None:
    """Blocks behind the same first 1,024 tokens are one group; first blocks have a node of their own."""
    shared = pool(nodes=8)
    assert isinstance(shared, GroupedPool)
    head = sequence(0, 16)
    for seed in range(1, 30):
        shared.store(b"", head + sequence(seed, 20), 0, 36, (), 0.0)
    assert 1 <= sum(node.store.memory_bytes > 0 for node in shared._nodes) <= 2

    for seed in range(100, 200):
        shared.store(b"", sequence(seed, 36), 0, 36, (), 0.0)
    assert all(node.store.memory_bytes > 0 for node in shared._nodes)


def test_a_block_has_one_place_whoever_writes_it() -> None:
    """Two sessions share ten blocks, written with the first of them only, and the short prompt itself."""
    shared = pool(nodes=8)
    for seed in range(20):
        head = sequence(seed, 10)
        first, second = head + sequence(100 + seed, 30), head + sequence(200 + seed, 30)
        shared.store(b"", head, 0, 5, (), 0.0)
        shared.store(b"", first, 5, 40, (), 0.0)
        shared.store(b"", second, 10, 40, (), 0.0)

        assert shared.find(b"", first, 0, 40, 1.0).end_block == 40
        assert shared.find(b"", second, 0, 40, 1.0).end_block == 40
        assert shared.find(b"", head, 0, 10, 1.0).end_block == 10


def test_a_window_may_lie_on_two_nodes() -> None:
    shared = pool(SLIDING, nodes=8)
    turn = sequence(1, 40)
    shared.store(b"", turn, 0, 17, [(15, 17)], 0.0)

    assert shared.find(b"", turn, 0, 40, 1.0).end_block == 17


def test_a_dead_node_costs_its_groups_a_timeout_until_the_ring_goes_on_without_it() -> None:
    shared = pool(nodes=2, sdk_timeout_s=0.05, detection_s=3.0, latency_s=0.001)
    assert isinstance(shared, GroupedPool)
    turns = [sequence(seed, 40) for seed in range(20)]
    for turn in turns:
        shared.store(b"", turn, 0, 40, (), 0.0)
    shared.fail(0, 10.0, lost=False)

    early = [shared.find(b"", turn, 0, 40, 11.0) for turn in turns]
    assert {found.end_block for found in early} == {0, 16, 40}, "all, the head alone, or nothing is left"
    assert {found.answered_s for found in early if found.end_block < 40} == {11.05}
    broken = [turn for turn, found in zip(turns, early, strict=True) if found.end_block == 16]
    assert shared.store(b"", broken[0], 0, 40, (), 11.0).blocks == 0, "the write is lost"

    assert shared.find(b"", broken[0], 0, 40, 14.0).answered_s == 14.001
    assert shared.store(b"", broken[0], 0, 40, (), 14.0).blocks == 24, "on the other node"
    assert shared.find(b"", broken[0], 0, 40, 15.0).end_block == 40

    shared.recover(0, 20.0)
    assert all(shared.find(b"", turn, 0, 40, 21.0).end_block == 40 for turn in turns), "it kept its memory"


def test_a_node_that_lost_its_memory_returns_empty() -> None:
    shared = pool(nodes=1)
    turn = sequence(1, 40)
    shared.store(b"", turn, 0, 40, (), 0.0)
    shared.fail(0, 1.0)
    shared.recover(0, 2.0)

    assert shared.find(b"", turn, 0, 40, 3.0).end_block == 0
    assert shared.held_bytes == 0


def test_a_failed_node_of_pooled_memory_breaks_every_sequence_at_its_first_block_there() -> None:
    """One node of four: the expected prefix is three blocks, for any length."""
    shared = pool(kind="pooled", nodes=4)
    assert isinstance(shared, PooledMemory)
    turns = [sequence(seed, 200) for seed in range(50)]
    for turn in turns:
        shared.store(b"", turn, 0, 200, (), 0.0)
    held = shared.held_bytes
    shared.fail(2, 1.0)

    ends = [shared.find(b"", turn, 0, 200, 10.0).end_block for turn in turns]
    assert 2.0 < sum(ends) / len(ends) < 4.5
    for turn, end in zip(turns, ends, strict=True):
        high_bits = int.from_bytes(turn[8 * end : 8 * end + 8], "little") >> 32
        assert high_bits % 4 == 2
    assert shared.held_bytes == pytest.approx(0.75 * held, rel=0.02)

    stored = shared.store(b"", turns[0], 0, 200, (), 11.0)
    assert 30 < stored.blocks < 70, "only what was lost is written again"
    assert shared.find(b"", turns[0], 0, 200, 12.0).end_block == 200


def test_pooled_memory_shrinks_with_its_nodes() -> None:
    shared = pool(kind="pooled", nodes=4, memory_tokens=6400)
    for seed in range(4):
        shared.store(b"", sequence(seed, 100), 0, 100, (), float(seed))
    assert shared.held_bytes == 400 * DENSE.block_bytes
    for node in range(4):
        shared.fail(node, 10.0)
        assert shared.held_bytes <= (3 - node) * 100 * DENSE.block_bytes
    assert shared.store(b"", sequence(9, 10), 0, 10, (), 11.0).blocks == 0


def test_settings_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match="disk"):
        L3Settings(kind="pooled", disk_tokens=1)
    with pytest.raises(ValueError, match="node"):
        L3Settings(nodes=0)
    with pytest.raises(ValueError, match="share"):
        L3Settings(rank_loss_ratio=1.0)
    with pytest.raises(ValueError, match="beyond 0 to 7"):
        L3Settings(absences=(Absence(8, 1.0),))
    with pytest.raises(ValueError, match="leave at 5 s"):
        Absence(0, 5.0, 5.0)
