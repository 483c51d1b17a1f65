"""Every byte of an answer is known beforehand, so every fault of an answer is reported."""

import asyncio
from dataclasses import replace

import pytest

from loadtest.chaos.agents import PATH, Agents, Question, fault_of, read
from loadtest.chaos.testbed import PAIR_MODEL
from loadtest.chaos.visitor import End, Visit, visit
from loadtest.engine import EmulatedEngine, EngineSettings
from loadtest.workload import MODEL

QUICK = EngineSettings(models=(MODEL, PAIR_MODEL), prefill_tokens_per_s=1e6, prefill_base_ms=0.1, tpot_ms=0.1)
MESSAGES = [{"role": "user", "content": "say something"}]


def question(*, streamed: bool = True, kind: str = "plain") -> Question:
    return Question(kind, MESSAGES, 20, streamed, 0, None)


async def answered(asked: Question, settings: EngineSettings = QUICK) -> Visit:
    async with EmulatedEngine(settings) as engine:
        return await visit(
            engine.url, PATH, asked.body(), streamed=asked.streamed, patience_s=10.0, whole=True
        )


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_a_right_answer_has_nothing_wrong_and_says_what_was_cached(
    streamed: bool, dialect: str
) -> None:
    asked = question(streamed=streamed)
    seen = await answered(asked, replace(QUICK, dialect=dialect))
    wrong, told = fault_of(asked, seen)
    assert (seen.end, wrong) == (End.ANSWERED, "")
    assert told is not None
    assert (told.text, told.cached_tokens) == (asked.expected(), 0)
    assert told.prompt_tokens > 0


async def test_a_chunk_that_is_missing_comes_twice_or_is_somebody_elses_shows() -> None:
    asked = question()
    seen = await answered(asked, replace(QUICK, emit_interval_ms=0.0, tpot_ms=2.0))
    events = seen.body.split(b"\n\n")
    content = [
        at for at, event in enumerate(events) if b'"content":"' in event and b'"content":""' not in event
    ]
    at = content[len(content) // 2]
    for damaged in (
        events[:at] + events[at + 1 :],
        events[: at + 1] + events[at:],
        [*events[:at], events[at + 1], events[at], *events[at + 2 :]],
    ):
        wrong, told = fault_of(asked, replace(seen, body=b"\n\n".join(damaged)))
        assert "the same up to" in wrong
        assert told is None
    other = replace(asked, messages=[{"role": "user", "content": "something else"}])
    assert "the same up to 0" in fault_of(other, seen)[0]


async def test_what_breaks_off_must_begin_as_the_answer_does() -> None:
    asked = question()
    seen = await answered(asked)
    half = seen.body[: len(seen.body) // 2]
    assert fault_of(asked, replace(seen, end=End.CUT, body=half))[0] == ""
    told = half + b'\n\ndata: {"error": {"code": "stream_broken"}}\n\n'
    assert fault_of(asked, replace(seen, end=End.FAILED, body=told))[0] == ""
    other = replace(asked, messages=[{"role": "user", "content": "something else"}])
    assert "broken off" in fault_of(other, replace(seen, end=End.CUT))[0]


async def test_bytes_behind_an_answer_are_wrong_whatever_they_are() -> None:
    asked = question()
    seen = await answered(asked)
    assert fault_of(asked, replace(seen, surplus_bytes=3))[0] == "3 bytes behind the end of the answer"


async def test_what_is_no_answer_at_all_is_told() -> None:
    asked = question(streamed=False)
    seen = await answered(asked)
    assert "not an answer" in fault_of(asked, replace(seen, body=b"<html>"))[0]


def test_reading_leaves_out_what_is_not_complete() -> None:
    told = read(b'data: {"choices":[{"delta":{"content":"abc "}}]}\n\ndata: {"choi', streamed=True)
    assert (told.text, told.cached_tokens) == ("abc ", None)


async def test_agents_ask_until_they_pause_and_count_every_end() -> None:
    async with EmulatedEngine(QUICK) as engine:
        agents = Agents(lambda: {"r1": engine.url}, lambda _: {}, clients=6, think_s=0.01, seed=1)
        async with agents:
            while len(agents.asked) < 60:  # noqa: ASYNC110 - plain state
                await asyncio.sleep(0.01)
            agents.check()
            await agents.pause()
            asked = agents.sent
            assert agents.open == 0
            assert agents.ends.total() == asked
            await asyncio.sleep(0.1)
            assert agents.sent == asked
            agents.resume()
            while agents.sent == asked:  # noqa: ASYNC110 - plain state
                await asyncio.sleep(0.01)
    assert {one.wrong for one in agents.asked} == {""}
    assert {one.kind for one in agents.asked} == {"turn", "plain", "pair"}
    turns = [one for one in agents.asked if one.reusable_tokens and one.cached_tokens is not None]
    assert turns
    assert all((one.cached_tokens or 0) >= one.reusable_tokens for one in turns)


async def test_a_client_that_fails_by_itself_is_heard_of() -> None:
    def nowhere(tenant: str) -> dict[str, str]:
        raise KeyError(tenant)

    async with Agents(
        lambda: {"r1": "http://127.0.0.1:9"}, nowhere, clients=1, think_s=0.001, seed=1
    ) as agents:
        await asyncio.sleep(0.1)
        with pytest.raises(KeyError):
            agents.check()
