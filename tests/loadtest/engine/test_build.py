"""Engines built from their profiles, with the real KV cache."""

from dataclasses import replace

import pytest
from fakes.virtual_clock import VirtualClock

from loadtest.engine.build import build_worker, cache_rules
from loadtest.engine.job import Job
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


def job(sink: Ends, session: int, prompt_tokens: int, output_tokens: int) -> Job:
    kept = prompt_tokens + output_tokens - 1
    blocks = chain_bytes(bytes(64) * (kept // 64), session, 64)
    return Job(blocks[: prompt_tokens // 64 * 8], prompt_tokens, output_tokens, blocks, kept, sink)


def test_rules_of_a_rank_follow_the_profile_and_the_dialect() -> None:
    profile = PROFILES["mimo-v2.5-pro"]
    sglang, vllm = cache_rules(profile, "sglang"), cache_rules(profile, "vllm")

    assert (sglang.match_rule, sglang.chunk_tokens, sglang.insert_early) == ("sglang", 16_384, False)
    assert (vllm.match_rule, vllm.insert_early, vllm.full_tokens) == ("vllm", True, sglang.full_tokens)
    assert not cache_rules(replace(profile, chunk_tokens=0), "vllm").insert_early


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
@pytest.mark.parametrize("name", ["mimo-v2.5-pro", "mimo-v2-flash", "dense-70b"])
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
