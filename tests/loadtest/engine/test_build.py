"""Engines built from their profiles, with the real KV cache."""

from dataclasses import replace
from typing import Any

import pytest
from fakes.virtual_clock import VirtualClock
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.engine.build import build_shared_pool, build_worker, cache_rules
from loadtest.engine.job import Job, Role
from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.stack import has_lower_tiers
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.profiles import PROFILES
from loadtest.engine.settings import Dialect
from radix import chain_bytes


class Ends:
    """A sink and observer that notes ends."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def emitted(self, job: Job) -> None:
        pass

    def finished(self, job: Job, reason: str) -> None:
        self.reasons.append(reason)

    def left(self, job: Job, reason: str, now_s: float) -> None:
        pass


def job(sink: Ends, session: int, prompt_tokens: int, output_tokens: int, role: Role = "plain") -> Job:
    kept = prompt_tokens + max(0, output_tokens - 1)
    blocks = chain_bytes(bytes(64) * (kept // 64), session, 64)
    return Job(blocks[: prompt_tokens // 64 * 8], prompt_tokens, output_tokens, blocks, kept, sink, role)


def test_rules_of_a_rank_follow_the_profile_and_the_dialect() -> None:
    profile = PROFILES["mimo-v2.5-pro"]
    sglang, vllm = cache_rules(profile, "sglang"), cache_rules(profile, "vllm")

    assert (sglang.match_rule, sglang.chunk_tokens, sglang.insert_early) == ("sglang", 16_384, False)
    assert (vllm.match_rule, vllm.insert_early, vllm.full_tokens) == ("vllm", True, sglang.full_tokens)
    assert not cache_rules(replace(profile, chunk_tokens=0), "vllm").insert_early


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_next_turn_of_a_session_reuses_the_turn_before(name: str, dialect: Dialect) -> None:
    """20,000 tokens and an answer of 500: 20,499 have KV, which are 320 blocks."""
    clock, sink = VirtualClock(), Ends()
    worker = build_worker(PROFILES[name], clock, observer=sink, dialect=dialect)
    worker.submit(job(sink, 1, 20_000, 500))
    worker.submit(job(sink, 2, 30_000, 500))
    clock.run()
    turn = job(sink, 1, 21_000, 10)
    worker.submit(turn)
    clock.run()

    assert sink.reasons == ["stop"] * 3
    assert turn.cached_tokens == 320 * 64
    assert worker.used_tokens == 0


def test_what_one_engine_computed_another_reads_from_the_pool() -> None:
    """The second engine has never seen the session: it reads 312 blocks, all but the last token's."""
    profile = PROFILES["mimo-v2.5-pro"]
    pool = build_shared_pool(profile, L3Settings())
    clock, sink = VirtualClock(), Ends()
    workers = [build_worker(profile, clock, observer=sink, pool=pool) for _ in range(2)]
    turns = [job(sink, 1, 20_000, 1), job(sink, 1, 20_000, 1)]
    for worker, turn in zip(workers, turns, strict=True):
        worker.submit(turn)
        clock.run()

    assert turns[0].cached_tokens == 0
    assert turns[1].lease.pool_tokens == turns[1].cached_tokens == 312 * 64
    assert turns[1].started_s > turns[1].arrived_s
    tiers = workers[1].ranks[turns[1].rank].tiers
    assert tiers is not None
    assert tiers.counters.prefetched_tokens == 312 * 64


def test_the_host_gives_back_what_the_device_had_to_evict() -> None:
    """The device holds two sessions of 20,000 tokens, the host four."""
    profile = PROFILES["dense-70b"]
    small = replace(profile.rules, full_tokens=45_000)
    profile = replace(profile, rules=small, host_tier=HiCacheSettings(host_tokens=90_000))
    clock, sink = VirtualClock(), Ends()
    worker = build_worker(profile, clock, observer=sink)
    turns = []
    for session in (1, 2, 3, 1):
        turns.append(job(sink, session, 20_000, 1))
        worker.submit(turns[-1])
        clock.run()

    lease = turns[-1].lease
    assert lease.matched_tokens == 312 * 64
    assert lease.host_tokens > lease.device_tokens
    assert lease.load_bytes == lease.host_tokens * profile.shape.token_bytes


def test_a_model_without_lower_tiers_is_refused_a_pool() -> None:
    profile = replace(PROFILES["mimo-v2.5-pro"], host_tier=HiCacheSettings())

    with pytest.raises(ValueError, match="no host tier is modelled for sliding_window"):
        build_worker(profile, VirtualClock(), observer=Ends(), dialect="vllm")


def test_ranks_with_latent_attention_write_once_and_read_a_copy_each() -> None:
    """15 MLA layers, 8 ranks: 312 blocks are written once, and read eight times with one state."""
    profile = PROFILES["kimi-linear-1t"]
    pool = build_shared_pool(profile, L3Settings())
    clock, sink = VirtualClock(), Ends()
    workers = [build_worker(profile, clock, observer=sink, pool=pool) for _ in range(2)]
    for worker in workers:
        worker.submit(job(sink, 1, 312 * 64 + 1, 1))
        clock.run()
    clients = [worker.ranks[0].tiers.client for worker in workers if worker.ranks[0].tiers is not None]
    block_bytes, state_bytes = 64 * profile.shape.token_bytes, profile.shape.state_bytes

    assert clients[0] is not None
    states, rest = divmod(clients[0].written_bytes - 312 * block_bytes, state_bytes)
    assert rest == 0
    assert states >= 1
    assert clients[1] is not None
    assert clients[1].read_bytes == 8 * 312 * block_bytes + state_bytes


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(PROFILES)),
    st.sampled_from(["sglang", "vllm"]),
    st.booleans(),
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.integers(1, 3_000),
            st.integers(0, 300),
            st.floats(0, 1.0),
            st.sampled_from(["plain", "plain", "prefill", "decode"]),
            st.one_of(st.none(), st.integers(0, 30)),
        ),
        max_size=30,
    ),
)
def test_whatever_comes_the_whole_engine_ends_every_job_and_keeps_nothing_in_use(
    name: str, dialect: Dialect, tiered: bool, steps: Any
) -> None:
    """Caches of a few prompts only, so that everything is evicted, loaded and waited for."""
    profile = PROFILES[name]
    windows = profile.shape.window_layers
    rules = replace(
        profile.rules,
        full_tokens=8_000,
        swa_tokens=3_000 if windows else 0,
        retained_interval_tokens=512 if windows else 0,
        state_slots=6 if profile.shape.state_layers else 0,
    )
    tiered = tiered and has_lower_tiers(replace(rules, match_rule=dialect))
    profile = replace(
        profile,
        rules=rules,
        chunk_tokens=1_024,
        max_running=8,
        host_tier=HiCacheSettings() if tiered else None,
    )
    pool = build_shared_pool(profile, L3Settings(nodes=2, memory_tokens=20_000)) if tiered else None
    clock, sink = VirtualClock(), Ends()
    worker = build_worker(profile, clock, observer=sink, pool=pool, dialect=dialect)
    jobs: list[Job] = []
    for session, prompt_tokens, output_tokens, wait_s, role, victim in steps:
        jobs.append(job(sink, session, prompt_tokens, output_tokens, role))
        worker.submit(jobs[-1])
        clock.run(until_s=clock.now_s + wait_s)
        worker.release(jobs[-1])
        worker.deliver(jobs[-1])
        if victim is not None and victim < len(jobs):
            worker.abort(jobs[victim])
    clock.run()
    while any(rank.held for rank in worker.ranks):
        for one in jobs:
            worker.release(one)
        clock.run()

    assert len(sink.reasons) == len(jobs)
    assert "refused" not in sink.reasons
    assert (worker.running, worker.waiting, worker.used_tokens) == (0, 0, 0)
    assert worker.clear()
