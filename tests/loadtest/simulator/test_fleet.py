"""Reports of the fleet, and the real contents of its engines."""

from dataclasses import replace

import pytest
from fakes.workloads import request

from loadtest.engine.job import Job
from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.profiles import PROFILES
from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.fleet import Fleet, WorkerGroup
from policies import HostMemory
from router.engines.sglang import describe

ENGINE = replace(PROFILES["dense-70b"], rules=CacheRules(full_tokens=10_000))
PROMPT = request(bytes(i % 251 for i in range(2000)), tokens=1500, output_tokens=1)


class Waiting:
    """Waits for a job and does nothing."""

    def emitted(self, job: Job) -> None:
        pass

    def finished(self, job: Job, reason: str) -> None:
        pass


def serve(fleet: Fleet, clock: VirtualClock, worker: int, tokens: int) -> None:
    """Let a worker compute the start of the prompt."""
    blocks = PROMPT.blocks[: tokens // 64 * 8]
    fleet.workers[worker].submit(Job(blocks, tokens, 1, blocks, tokens, Waiting()))
    clock.run()


def test_workers_are_named_by_what_they_do_and_found_again() -> None:
    fleet = Fleet(ENGINE, VirtualClock(), 2, 1)

    puts = fleet.puts(1)

    assert [(put.worker, put.role, put.capacity_tokens) for put in puts] == [
        ("worker-000", "prefill", 10_000),
        ("worker-001", "prefill", 10_000),
        ("decode-000", "decode", 10_000),
    ]
    assert [fleet.places[put.worker] for put in puts[:2]] == [0, 1]
    assert fleet.decode_places == {puts[2].worker: 0}
    assert {put.role for put in Fleet(ENGINE, VirtualClock(), 2, 0).puts(1)} == {"plain"}


@pytest.mark.parametrize(
    ("host", "tokens"),
    [
        (HiCacheSettings(host_ratio=3.0), 30_000),
        (HiCacheSettings(host_tokens=50_000), 50_000),
        (HiCacheSettings(host_ratio=3.0, write_policy="write_back"), 40_000),
        (None, 0),
    ],
)
def test_the_gateway_is_told_of_host_memory_as_engines_describe_it(
    host: HiCacheSettings | None, tokens: int
) -> None:
    """The same number as the gateway reads from the description of an emulated engine of that size."""
    fleet = Fleet(ENGINE, VirtualClock(), 2, 1, host)
    told = [op for op in fleet.puts(1) if isinstance(op, HostMemory)]
    assert {op.worker: op.tokens for op in told} == (
        {"worker-000": tokens, "worker-001": tokens} if tokens else {}
    )
    if host is not None:
        info = {
            "max_total_num_tokens": 10_000,
            "enable_hierarchical_cache": True,
            "hicache_ratio": (host.host_tokens or host.host_ratio * 10_000) / 10_000,
            "hicache_write_policy": host.write_policy,
        }
        assert describe(info, "").host_tokens == tokens


def test_a_convertible_worker_is_one_engine_that_prefills_or_decodes() -> None:
    groups = [
        WorkerGroup(name="p", profile=ENGINE, count=1, role="prefill", convertible=True),
        WorkerGroup(name="d", profile=ENGINE, count=1, role="decode", convertible=True),
        WorkerGroup(name="fixed", profile=ENGINE, count=1, role="decode"),
    ]
    fleet = Fleet(ENGINE, VirtualClock(), 1, 2, groups=groups)

    assert fleet.workers == fleet.decode_workers[:2]
    assert list(fleet.places) == ["p-000", "d-000"]
    assert list(fleet.decode_places) == ["p-000", "d-000", "fixed-000"]
    labels = [put.labels for put in fleet.puts(1)]
    assert ["convertible" in label for label in labels] == [True, True, False]
    assert all(label["max_running_requests"] == str(ENGINE.max_running) for label in labels)


def test_workers_that_take_requests_carry_the_label_of_their_bucket() -> None:
    fleet = Fleet(ENGINE, VirtualClock(), 2, 1)

    assert [put.labels for put in fleet.puts(1, ["0-64K", "64K-1M"])] == [
        {"bucket": "0-64K"},
        {"bucket": "64K-1M"},
        {},
    ]
    assert [put.labels for put in fleet.puts(1)] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("host", "l3", "capacity_tokens"),
    [
        (None, None, 2 * 10_000),
        (HiCacheSettings(host_ratio=3.0), None, 2 * 30_000),
        (HiCacheSettings(host_ratio=0.5), None, 2 * 10_000),
        (HiCacheSettings(host_tokens=50_000), None, 2 * 50_000),
        (HiCacheSettings(), L3Settings(nodes=2, memory_tokens=7000, disk_tokens=500), 2 * 20_000 + 15_000),
    ],
)
def test_capacity_counts_every_token_once(
    host: HiCacheSettings | None, l3: L3Settings | None, capacity_tokens: int
) -> None:
    assert Fleet(ENGINE, VirtualClock(), 2, 3, host, l3).capacity_tokens == capacity_tokens


def test_the_engines_say_who_holds_most() -> None:
    """500 tokens are 7 blocks, 1,000 are 15; the last token is always computed."""
    clock = VirtualClock()
    fleet = Fleet(ENGINE, clock, 3, 0)
    serve(fleet, clock, 1, 500)
    serve(fleet, clock, 2, 1000)

    assert fleet.reach_tokens(PROMPT.blocks, 1500, 0, 1472) == (960, 960)
    assert fleet.reach_tokens(PROMPT.blocks, 1500, 1, 448) == (448, 448)


def test_what_is_held_without_its_window_cannot_be_reused() -> None:
    """A request leaves a sequence of 1,000 tokens at 640: its blocks are there, its window is not."""
    rules = CacheRules(full_tokens=10_000, attention="sliding_window", window_tokens=128, swa_tokens=2000)
    clock = VirtualClock()
    engine = replace(PROFILES["mimo-v2-flash"], rules=rules, dp_ranks=1)
    fleet = Fleet(engine, clock, 1, 0)
    serve(fleet, clock, 0, 1000)

    reused, held = fleet.reach_tokens(PROMPT.blocks[:80], 641, 0, 640)

    assert (reused, held) == (0, 640)


def test_the_log_is_told_of_ranks_unless_the_gateway_is_not_aware_of_them() -> None:
    fleet = Fleet(PROFILES["mimo-v2.5-pro"], VirtualClock(), 1, 0)
    assert [put.ranks for put in fleet.puts(1)] == [2]
    assert [put.ranks for put in fleet.puts(1, dp_aware=False)] == [0]
