"""Streams whose worker dies are continued by another one, through a real gateway on real sockets."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from fakes.running import Fleet, RunningGateway, until
from fakes.writing_engine import PIECES, PROMPT_TOKENS, TEXT, Death, WritingEngine

from router.continuing.keeper import CONTINUE_HEADER

ASKS = {CONTINUE_HEADER.decode(): "true"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Write."}], "stream": True, "temperature": 0}
COMPLETION = {"model": "m", "prompt": "Write.|", "stream": True, "temperature": 0}


@pytest.fixture
async def engines() -> AsyncIterator[list[WritingEngine]]:
    async with WritingEngine() as one, WritingEngine() as two, WritingEngine() as three:
        yield [one, two, three]


async def in_front_of(fleet: Fleet, *engines: WritingEngine, **sections: dict[str, Any]) -> RunningGateway:
    sections.setdefault("placement", {"policy": "round_robin"})
    gateway = await fleet.gateway(*(each.url for each in engines), **sections)
    registry = gateway.process.registry
    await until(lambda: all(local.models for local in registry.all()))
    await until(lambda: len(registry.eligible(None, registry.now_us())) == len(engines))
    return gateway


def kill(engines: list[WritingEngine], *deaths: tuple[int, Death]) -> None:
    """The first requests die so, whichever engine gets them: each death is the next of all engines."""
    shared = list(deaths)
    for engine in engines:
        engine.deaths = shared


class Stream:
    """A stream as its client saw it."""

    def __init__(self, headers: httpx.Headers, text: str) -> None:
        self.headers, self.raw = headers, text
        events = [event for event in text.split("\n\n") if event]
        self.comments = [event for event in events if event.startswith(":")]
        self.data = [event.removeprefix("data: ") for event in events if event.startswith("data:")]
        self.chunks = [json.loads(data) for data in self.data if data != "[DONE]"]
        self.errors = [chunk["error"] for chunk in self.chunks if "error" in chunk]
        self.choices = [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]
        self.text = "".join(
            choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in self.choices
        )
        self.usages = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]

    @property
    def is_whole(self) -> bool:
        """One stream of one worker, for all that a client can see."""
        roles = [choice["delta"]["role"] for choice in self.choices if "role" in choice.get("delta", {})]
        return (
            not self.errors
            and self.data.count("[DONE]") == 1
            and self.data[-1] == "[DONE]"
            and len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in self.chunks}) == 1
            and len(roles) == ("delta" in self.choices[0])
            and [choice["finish_reason"] for choice in self.choices if choice["finish_reason"]] != []
        )


async def stream(
    gateway: RunningGateway, body: dict[str, Any], headers: dict[str, str] | None = None
) -> Stream:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = await gateway.client.post(path, json=body, headers=ASKS if headers is None else headers)
    assert answer.status_code == 200, answer.text
    return Stream(answer.headers, answer.text)


async def counted(gateway: RunningGateway) -> dict[str, float]:
    """The continuations, by what came of them."""
    found = {}
    for line in (await gateway.client.get("/metrics")).text.splitlines():
        if line.startswith("cacheway_continuations_total{"):
            found[line.split('"')[1]] = float(line.rpartition(" ")[2])
    return found


@pytest.mark.parametrize("body", [CHAT, COMPLETION], ids=["chat", "completion"])
@pytest.mark.parametrize("death", [Death.RESET, Death.CLOSE, Death.ERROR_EVENT, Death.END_WITHOUT_DONE])
async def test_another_worker_continues_the_text(
    fleet: Fleet, engines: list[WritingEngine], body: dict[str, Any], death: Death
) -> None:
    gateway = await in_front_of(fleet, *engines)
    for pieces in (1, 3, 4, 7, 8, 12):
        kill(engines, (pieces, death))
        seen = await stream(gateway, {**body, "stream_options": {"include_usage": True}})
        assert seen.text == TEXT, pieces
        assert seen.is_whole, seen.raw
        assert seen.comments == [": continued"]
        assert seen.headers["x-cacheway-continue"] == "true"
        (usage,) = seen.usages
        assert usage["prompt_tokens"] == PROMPT_TOKENS
        assert usage["completion_tokens"] == len(PIECES)
        assert usage["total_tokens"] == PROMPT_TOKENS + len(PIECES)
        assert usage["prompt_tokens_details"]["cached_tokens"] <= PROMPT_TOKENS
    assert (await counted(gateway))["continued"] == 6
    await until(gateway.idle)
    assert gateway.process.clients.held.count == 0


@pytest.mark.parametrize("body", [CHAT, COMPLETION], ids=["chat", "completion"])
async def test_the_client_gets_the_counts_that_it_asked_for(
    fleet: Fleet, engines: list[WritingEngine], body: dict[str, Any]
) -> None:
    gateway = await in_front_of(fleet, *engines)
    kill(engines, (3, Death.RESET))
    assert (await stream(gateway, body)).usages == []
    assert (await stream(gateway, body)).usages == []
    kill(engines, (3, Death.RESET))
    options = {"include_usage": True, "continuous_usage_stats": True}
    seen = await stream(gateway, {**body, "stream_options": options})
    counts = [usage["completion_tokens"] for usage in seen.usages]
    assert counts == sorted(counts)
    assert {usage["prompt_tokens"] for usage in seen.usages} == {PROMPT_TOKENS}
    assert counts[-1] == len(PIECES)


async def test_two_workers_die_one_after_the_other(fleet: Fleet, engines: list[WritingEngine]) -> None:
    gateway = await in_front_of(fleet, *engines, upstream={"continuations_max": 2})
    kill(engines, (4, Death.RESET), (3, Death.CLOSE))
    seen = await stream(gateway, {**CHAT, "stream_options": {"include_usage": True}})
    assert (seen.text, seen.is_whole) == (TEXT, True)
    assert seen.comments == [": continued"] * 2
    assert seen.usages[-1]["completion_tokens"] == len(PIECES)
    kill(engines, (2, Death.RESET), (2, Death.RESET), (2, Death.RESET))
    seen = await stream(gateway, CHAT)
    assert TEXT.startswith(seen.text)
    assert [error["code"] for error in seen.errors] == ["upstream_stream_broken"]
    assert (await counted(gateway))["limit"] == 1
    await until(gateway.idle)


@pytest.mark.parametrize("counts", [True, False])
async def test_sglangs_dialect_and_engines_without_counts(fleet: Fleet, counts: bool) -> None:
    async with (
        WritingEngine(sglang=True, counts=counts) as one,
        WritingEngine(sglang=True, counts=counts) as two,
    ):
        gateway = await in_front_of(fleet, one, two)
        kill([one, two], (5, Death.RESET))
        seen = await stream(gateway, {**CHAT, "stream_options": {"include_usage": True}})
        assert (seen.text, seen.is_whole) == (TEXT, True)
        (usage,) = seen.usages
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT_TOKENS, len(PIECES))


async def test_characters_that_are_cut_in_two_between_reads(
    fleet: Fleet, engines: list[WritingEngine]
) -> None:
    for engine in engines:
        engine.piece_bytes = 5
    gateway = await in_front_of(fleet, *engines)
    for pieces in range(1, len(PIECES)):
        kill(engines, (pieces, Death.RESET))
        seen = await stream(gateway, CHAT)
        assert (seen.text, seen.is_whole) == (TEXT, True), pieces


async def test_a_worker_that_falls_silent(fleet: Fleet, engines: list[WritingEngine]) -> None:
    gateway = await in_front_of(fleet, *engines, upstream={"idle_timeout_s": 0.3})
    kill(engines, (5, Death.STALL))
    seen = await stream(gateway, CHAT)
    assert (seen.text, seen.is_whole) == (TEXT, True)
    for engine in engines:
        engine.let_die.set()


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_limits_of_tokens_hold_for_the_whole_answer(
    fleet: Fleet, engines: list[WritingEngine], field: str
) -> None:
    gateway = await in_front_of(fleet, *engines)
    kill(engines, (4, Death.RESET))
    seen = await stream(gateway, {**CHAT, field: 9, "stream_options": {"include_usage": True}})
    assert (seen.text, seen.is_whole) == ("".join(PIECES[:9]), True)
    assert seen.choices[-1]["finish_reason"] == "length"
    assert seen.usages[-1]["completion_tokens"] == 9
    (again,) = [body for engine in engines for body in engine.got if "continue_final_message" in body]
    assert again[field] == 6  # the white space is made once more


@pytest.mark.parametrize("usage", [True, False])
async def test_a_stream_that_lacks_only_its_end_needs_no_other_worker(
    fleet: Fleet, engines: list[WritingEngine], usage: bool
) -> None:
    gateway = await in_front_of(fleet, *engines)
    kill(engines, (0, Death.BEFORE_DONE))
    seen = await stream(gateway, {**CHAT, **({"stream_options": {"include_usage": True}} if usage else {})})
    assert (seen.text, seen.is_whole, seen.comments) == (TEXT, True, [])
    assert [each["completion_tokens"] for each in seen.usages] == ([len(PIECES)] if usage else [])
    assert sum(len(engine.got) for engine in engines) == 1
    assert await counted(gateway) == {"ended": 1}
    await until(gateway.idle)


REFUSED: list[dict[str, Any]] = [
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"logprobs": True},
    {"n": 2},
    {"seed": 0},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": "a*"}},
    {"continue_final_message": True, "add_generation_prompt": False},
]


@pytest.mark.parametrize("more", REFUSED, ids=lambda more: next(iter(more)))
async def test_what_is_not_plain_text_of_one_choice_ends_with_the_error_of_today(
    fleet: Fleet, engines: list[WritingEngine], more: dict[str, Any]
) -> None:
    gateway = await in_front_of(fleet, *engines)
    kill(engines, (3, Death.RESET))
    body = {**CHAT, **more}
    if "continue_final_message" in more:
        body["messages"] = [*CHAT["messages"], {"role": "assistant", "content": "Zwei"}]  # type: ignore[misc]
    seen = await stream(gateway, body)
    assert "x-cacheway-continue" not in seen.headers
    assert [error["code"] for error in seen.errors] == ["upstream_stream_broken"]
    assert sum(len(engine.got) for engine in engines) == 1
    assert "continuous_usage_stats" not in str(engines[0].got)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "tool_calls"])
async def test_a_stream_with_reasoning_or_tool_calls_is_not_continued(
    fleet: Fleet, engines: list[WritingEngine], name: str
) -> None:
    def thinks(chunk: dict[str, Any]) -> None:
        for choice in chunk["choices"]:
            choice["delta"][name] = [{"index": 0}] if name == "tool_calls" else "Hm."

    for engine in engines:
        engine.edits = thinks
    gateway = await in_front_of(fleet, *engines)
    kill(engines, (3, Death.RESET))
    seen = await stream(gateway, CHAT)
    assert [error["code"] for error in seen.errors] == ["upstream_stream_broken"]
    assert (await counted(gateway)) == {"not_plain": 1}
    await until(gateway.idle)
    assert gateway.process.clients.held.count == 0


async def test_reasoning_that_no_parser_took_out_is_seen(fleet: Fleet, engines: list[WritingEngine]) -> None:
    def thinks(chunk: dict[str, Any]) -> None:
        for choice in chunk["choices"]:
            if choice["delta"].get("content"):
                choice["delta"]["content"] = "<think>"

    for engine in engines:
        engine.edits = thinks
    gateway = await in_front_of(fleet, *engines)
    kill(engines, (2, Death.RESET))
    assert [error["code"] for error in (await stream(gateway, CHAT)).errors] == ["upstream_stream_broken"]
    assert (await counted(gateway)) == {"not_plain": 1}


async def test_an_engine_that_refuses_is_not_asked_again(fleet: Fleet, engines: list[WritingEngine]) -> None:
    gateway = await in_front_of(fleet, *engines)
    for engine in engines:
        engine.status = 400
    kill(engines, (3, Death.RESET), (3, Death.RESET))
    seen = await stream(gateway, CHAT)
    assert seen.headers["x-cacheway-continue"] == "true"
    assert seen.text == "".join(PIECES[:3])
    assert [error["code"] for error in seen.errors] == ["upstream_stream_broken"]
    assert await counted(gateway) == {"refused": 1}
    seen = await stream(gateway, CHAT)
    assert "x-cacheway-continue" not in seen.headers
    assert [error["code"] for error in seen.errors] == ["upstream_stream_broken"]
    await until(gateway.idle)
    assert gateway.process.clients.held.count == 0


async def test_no_other_worker_is_left(fleet: Fleet, engines: list[WritingEngine]) -> None:
    gateway = await in_front_of(fleet, engines[0])
    kill(engines, (3, Death.RESET))
    assert [error["code"] for error in (await stream(gateway, CHAT)).errors] == ["upstream_stream_broken"]
    assert await counted(gateway) == {"no_other_attempt": 1}
    await until(gateway.idle)


async def test_the_setting_and_the_header_say_which_streams(
    fleet: Fleet, engines: list[WritingEngine]
) -> None:
    gateway = await in_front_of(fleet, *engines)
    live = gateway.process.live
    cases: list[tuple[dict[str, Any], dict[str, str], bool]] = [
        ({"upstream.continue_streams": "request"}, {}, False),
        ({"upstream.continue_streams": "all"}, {}, True),
        ({"upstream.continue_streams": "all"}, {CONTINUE_HEADER.decode(): "false"}, False),
        ({"upstream.continue_streams": "off"}, ASKS, False),
        ({"upstream.continue_streams": "request", "upstream.continue_models": ("other",)}, ASKS, False),
        ({"upstream.continue_models": ("m",)}, ASKS, True),
    ]
    for change, headers, continued in cases:
        live.change(change)
        kill(engines, (3, Death.RESET))
        seen = await stream(gateway, CHAT, headers)
        assert (seen.text == TEXT, not seen.errors) == (continued, continued), (change, headers)
        assert ("x-cacheway-continue" in seen.headers) is continued


async def test_the_next_worker_holds_the_prefix_and_the_client_may_leave(
    fleet: Fleet, engines: list[WritingEngine]
) -> None:
    gateway = await in_front_of(fleet, *engines)
    kill(engines, (3, Death.RESET), (3, Death.HOLD))
    path = "/v1/chat/completions"
    messages = [{"role": "user", "content": "Write. " * 200}]
    async with gateway.client.stream(
        "POST", path, json={**CHAT, "messages": messages}, headers=ASKS
    ) as answer:
        assert answer.status_code == 200
        await until(lambda: any(engine.held.is_set() for engine in engines))
        (second,) = (engine for engine in engines if engine.held.is_set())
        loads = gateway.process.fleet.loads
        assert len(loads.requests) == 1  # the dead worker's is released
    await until(second.left.is_set)
    await until(gateway.idle)
    recent, _ = gateway.process.gateway.reports.decisions.since(0)
    assert (recent[-1].outcome, recent[-1].continued, recent[-1].attempts) == ("client_left", 1, 2)
    assert recent[-1].attempt is not None
    assert recent[-1].attempt.worker_id == second.worker_id
    assert gateway.process.clients.held.count == 0


async def test_openais_sdk_reads_a_continued_stream(fleet: Fleet, engines: list[WritingEngine]) -> None:
    gateway = await in_front_of(fleet, *engines)
    kill(engines, (4, Death.RESET))
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        chunks = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Write."}], stream=True, extra_headers=ASKS
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
    assert text == TEXT


async def test_the_end_of_the_process_ends_a_stream_that_is_being_continued(
    fleet: Fleet, engines: list[WritingEngine]
) -> None:
    gateway = await in_front_of(fleet, *engines)
    kill(engines, (3, Death.RESET), (0, Death.HOLD))
    async with gateway.client.stream("POST", "/v1/chat/completions", json=CHAT, headers=ASKS) as answer:
        await until(lambda: any(engine.held.is_set() for engine in engines))
        gateway.process.gateway.sending.exchanges.timeout_s = 1e-3
        seen = Stream(answer.headers, (await answer.aread()).decode())
    assert [error["code"] for error in seen.errors] == ["request_timeout"]
    assert TEXT.startswith(seen.text)
    await until(gateway.idle)


async def test_the_rest_of_an_answer_is_of_the_model_that_began_it(fleet: Fleet) -> None:
    """The prompt is too short for a block, so a split draws by all of it, and the rest has a longer one."""
    one, other = (WritingEngine(model="n") for _ in range(2))
    async with WritingEngine() as a, WritingEngine() as b, one as c, other as d:
        split = {"m": {"ratio": 0.5, "model": "n"}}
        gateway = await in_front_of(fleet, a, b, c, d, models={"splits": split})
        for number in range(16):
            kill([a, b, c, d], (5, Death.RESET))
            body = {**CHAT, "messages": [{"role": "user", "content": f"Write {number}."}]}
            found = await stream(gateway, body)
            assert (found.text, found.is_whole) == (TEXT, True)
        await until(gateway.idle)
        got = [(each["model"], len(each["messages"])) for engine in (a, b, c, d) for each in engine.got]
        for model in ("m", "n"):
            assert got.count((model, 1)) == got.count((model, 2)) > 0
        text = (await gateway.client.get("/metrics")).text
        counts = [line.split() for line in text.splitlines() if "model_splits_total{" in line]
        assert sum(float(value) for _, value in counts) == 16
