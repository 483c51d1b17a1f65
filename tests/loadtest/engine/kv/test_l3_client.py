"""Reads from a pool: their time, their bytes, and the agreement of the ranks."""

from random import Random

import pytest

from loadtest.engine.kv.l3 import BlockSizes, L3Pool, L3Settings, build_pool
from loadtest.engine.kv.l3_client import Fetch, L3Client

DENSE = BlockSizes(64, 1000)
TURN = Random(1).randbytes(8 * 400)


def fetch(client: L3Client, now_s: float) -> Fetch:
    """Read all of the turn that there is."""
    found = client.find(TURN, 0, 400, now_s)
    return client.read(TURN, 0, found.end_block, found.answered_s)


def shared(**settings: object) -> L3Pool:
    defaults: dict[str, object] = {"nodes": 1, "node_bytes_per_s": 1e9, "latency_s": 0.001}
    pool = build_pool(L3Settings(**{**defaults, **settings}), DENSE)  # type: ignore[arg-type]
    pool.store((1).to_bytes(4, "little"), TURN, 0, 400, (), 0.0)
    return pool


def test_a_read_takes_the_latency_and_its_bytes_at_the_slower_rate() -> None:
    """400,000 bytes at 1 MB/s, after 1 ms to find and 1 ms to begin with."""
    client = L3Client(shared(), read_bytes_per_s=1e6)

    read = fetch(client, 10.0)

    assert (read.start_block, read.end_block, read.n_bytes) == (0, 400, 400_000)
    assert read.begins_s == pytest.approx(10.001)
    assert read.ends_s == pytest.approx(10.401)
    assert (client.read_blocks, client.read_bytes) == (400, 400_000)


def test_reads_of_several_workers_share_a_node_and_reads_of_one_share_its_network() -> None:
    pool = shared(node_bytes_per_s=1e6, latency_s=0.0)
    first, second = L3Client(pool), L3Client(pool)

    assert fetch(first, 0.0).ends_s == pytest.approx(0.4)
    assert fetch(second, 0.0).ends_s == pytest.approx(0.8)


def test_a_read_that_is_stopped_keeps_whole_batches_and_frees_the_network() -> None:
    """After half of one second, 200 of 400 blocks are there: one whole batch of 128."""
    client = L3Client(shared(latency_s=0.0), read_bytes_per_s=4e5)
    read = fetch(client, 0.0)

    kept = read.arrived_blocks(0.5, 128)
    client.stop(read, kept, 0.5)

    assert kept == 128
    assert read.arrived_blocks(1.0, 128) == 400
    assert (client.read_blocks, client.read_bytes) == (128, 128_000)
    assert fetch(client, 0.5).ends_s == pytest.approx(1.5)


def test_nothing_has_arrived_before_the_answer() -> None:
    assert Fetch(0, 400, 400_000, 1.0, 2.0).arrived_blocks(0.5, 1) == 0


def test_workers_of_another_tensor_parallel_size_share_only_if_the_pool_says_so() -> None:
    assert L3Client(shared(), tensor_parallel=2).find(TURN, 0, 400, 0.0).end_block == 0

    pool = build_pool(L3Settings(share_tensor_parallel=True), DENSE)
    L3Client(pool, tensor_parallel=8).store(TURN, 0, 400, (), 0.0)
    assert L3Client(pool, tensor_parallel=2).find(TURN, 0, 400, 0.0).end_block == 400


def test_replicated_data_are_written_once_and_read_by_every_rank() -> None:
    """MLA: eight ranks write 1,000 bytes a block and read 8,000."""
    pool = build_pool(L3Settings(), DENSE)
    client = L3Client(pool, tensor_parallel=8, replicated=True)
    client.store(TURN, 0, 400, (), 0.0)
    fetch(client, 1.0)

    assert client.written_bytes == 400 * 1000
    assert client.read_bytes == 8 * 400 * 1000
    assert pool.held_bytes == 400 * 1000


def test_the_shortest_rank_decides() -> None:
    """Each of n ranks loses 1 % of the blocks: the mean prefix is about 100/n blocks."""

    def mean(ranks: int) -> float:
        pool = build_pool(L3Settings(share_tensor_parallel=True, rank_loss_ratio=0.01), DENSE)
        client = L3Client(pool, tensor_parallel=ranks, seed=3)
        client.store(TURN, 0, 400, (), 0.0)
        return sum(client.find(TURN, 0, 400, 1.0).end_block for _ in range(400)) / 400

    assert mean(1) == pytest.approx(97, rel=0.15)
    assert mean(8) == pytest.approx(12, rel=0.2)


def test_losses_are_the_same_for_the_same_seed() -> None:
    def ends(seed: int) -> list[int]:
        client = L3Client(shared(rank_loss_ratio=0.02), seed=seed)
        return [client.find(TURN, 0, 400, 1.0).end_block for _ in range(20)]

    assert ends(1) == ends(1)
    assert ends(1) != ends(2)


def test_keeping_alive_costs_no_bytes() -> None:
    pool = shared(ttl_s=10.0)
    client = L3Client(pool)
    client.keep_alive(TURN, 0, 400, 9.0)

    assert client.find(TURN, 0, 400, 15.0).end_block == 400
    assert client.written_bytes == 0
