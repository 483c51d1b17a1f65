"""Replaying scripts against emulated engines: real HTTP, modelled time."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from loadtest.client import LoadClient, Outcome
from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.ideal import IdealCache
from loadtest.replay import Sample, Script, Turn, replay
from loadtest.traces import PromptText, TraceRequest
from loadtest.workload import MODEL, QUICK, TracedRequest, agent_sessions

FAST = EngineSettings(models=(MODEL,), cache_tokens=4_000_000, speed=1000.0)


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[str]]:
    async with EmulatedEngine(FAST) as first:
        if count == 1:
            yield [first.url]
            return
        async with EmulatedEngine(FAST) as second:
            yield [first.url, second.url]


async def run(
    scripts: list[Script], base_urls: list[str], *, sticky: bool = False
) -> tuple[list[Sample], int]:
    samples: list[Sample] = []
    async with LoadClient(timeout_s=30) as client:
        ideal = IdealCache(FAST.block_tokens)
        unsent = await replay(
            scripts, base_urls, client, ideal, samples.append, inflight_max=8, sticky=sticky
        )
    return samples, unsent


async def test_every_turn_of_the_workload_is_answered() -> None:
    sessions = agent_sessions(QUICK, 1)

    async with engines(1) as urls:
        samples, unsent = await run(list(sessions), urls)

    assert unsent == 0
    assert len(samples) == sum(session.turn_count for session in sessions)
    assert [sample.outcome.error for sample in samples] == [None] * len(samples)
    assert any(sample.outcome.tool_calls for sample in samples)


async def test_the_ideal_is_exactly_what_one_engine_reuses_when_nothing_overlaps_or_is_evicted() -> None:
    """One session after the other, all in the cache: reported equals ideal, turn by turn."""
    reused: list[tuple[int, int]] = []

    async with engines(1) as urls, LoadClient(timeout_s=30) as client:
        ideal = IdealCache(FAST.block_tokens)
        for session in agent_sessions(QUICK, 2):
            turns = session.turns()
            turn = next(turns)
            for _ in range(session.turn_count):
                expected = ideal.reuse(turn.prompt, turn.held_bytes)
                outcome = await client.send(urls[0], turn.path, turn.body)
                assert outcome.prompt_tokens * 4 == len(turn.prompt)
                reused.append((outcome.cached_tokens, expected))
                try:
                    turn = turns.send(outcome)
                except StopIteration:
                    break

    assert [reported for reported, _ in reused] == [expected for _, expected in reused]
    assert sum(expected for _, expected in reused) > 0


async def test_rows_of_a_trace_reuse_what_their_ids_share() -> None:
    text = PromptText(1)
    rows = [
        TraceRequest(0.0, 1024, 4, (0, 1)),
        TraceRequest(5.0, 1200, 4, (0, 1, 2)),
        TraceRequest(10.0, 900, 4, (0, 3)),
    ]
    scripts: list[Script] = [TracedRequest(row, 50.0, 64, text) for row in rows]

    async with engines(1) as urls:
        samples, _ = await run(scripts, urls)

    assert [sample.outcome.prompt_tokens for sample in samples] == [1024, 1200, 900]
    assert [sample.ideal_tokens for sample in samples] == [0, 1024, 512]
    assert [sample.outcome.cached_tokens for sample in samples] == [0, 1024, 512]


@dataclass
class ThreeTurns:
    """A script whose second turn asks for a model that does not exist."""

    start_s: float = 0.0
    turn_count: int = 3
    model: str = MODEL
    outcomes: list[Outcome] = field(default_factory=list)

    def turns(self) -> Generator[Turn, Outcome, None]:
        for model in (MODEL, self.model, MODEL):
            body = (
                b'{"model":"%s","prompt":"a b ","stream":true,"max_tokens":2,'
                b'"stream_options":{"include_usage":true}}' % model.encode()
            )
            self.outcomes.append((yield Turn(0.0, "/v1/completions", body, b"a b ")))


async def test_a_failed_turn_ends_its_session_and_the_rest_counts_as_unsent() -> None:
    broken, fine = ThreeTurns(model="absent"), ThreeTurns()

    async with engines(1) as urls:
        samples, unsent = await run([broken, fine], urls)

    assert unsent == 1
    assert sum(sample.outcome.error is not None for sample in samples) == 1
    assert len(samples) == 5
    assert len(fine.outcomes) == 3


async def test_turns_of_a_session_alternate_between_the_replicas_unless_they_stick_to_one() -> None:
    """Two engines without a gateway: the third turn meets the first one's blocks, the second meets none."""
    scripts: list[Script] = [session for session in agent_sessions(QUICK, 3) if session.turn_count >= 3][:1]

    async with engines(2) as urls:
        samples, _ = await run(scripts, urls)

    hits = [sample.outcome.cached_tokens for sample in samples]
    assert hits[0] == hits[1] == 0
    assert hits[2] > 0

    async with engines(2) as urls:
        samples, _ = await run(scripts, urls, sticky=True)

    assert samples[0].outcome.cached_tokens == 0
    assert all(sample.outcome.cached_tokens > 0 for sample in samples[1:])


async def test_no_more_requests_are_in_flight_than_allowed() -> None:
    inflight = most = 0

    class CountingClient(LoadClient):
        async def send(self, base_url: str, path: str, body: bytes, due_s: float | None = None) -> Outcome:
            nonlocal inflight, most
            inflight += 1
            most = max(most, inflight)
            await asyncio.sleep(0)
            try:
                return await super().send(base_url, path, body, due_s)
            finally:
                inflight -= 1

    async with engines(1) as urls, CountingClient(timeout_s=30) as client:
        scripts: list[Script] = [ThreeTurns() for _ in range(20)]
        await replay(scripts, urls, client, IdealCache(64), lambda _: None, inflight_max=3)

    assert most == 3
