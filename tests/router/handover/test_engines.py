"""Requests with two legs over real sockets: real pools, emulated engines, every protocol.

Engines wait minutes for a partner that does not come, so only legs that were ended are gone in the end.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fakes.legs import HeardPair, pair, worker

from loadtest.engine import EmulatedEngine, EngineSettings, Fault
from loadtest.engine.handover import HandoverSettings
from policies import HAND_OVERS
from router.errors import (
    HandoverFailed,
    StreamBroken,
    TransferFailed,
    UpstreamError,
    WorkerRefused,
    WorkerSilent,
)
from router.gateway.endpoints import Endpoint
from router.gateway.usage import find_usage
from router.handover import Leg, handovers
from router.proxy import UpstreamRules, WorkerPool

PROMPT = [number * 7 % 1900 + 10 for number in range(300)]
FAST: dict[str, Any] = {
    "prefill_base_ms": 0.5,
    "prefill_tokens_per_s": 1e6,
    "tpot_ms": 1.0,
    "emit_interval_ms": 1.0,
    "block_tokens": 16,
}


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.002)


class Stage:
    """Two engines of one protocol, and requests to both."""

    def __init__(self, protocol: str, stack: AsyncExitStack) -> None:
        self.protocol = protocol
        self.handover = handovers()[protocol]
        self._stack = stack
        self.engines: list[EmulatedEngine] = []
        self.pools: list[WorkerPool] = []
        self.rules = UpstreamRules()

    async def start(self, prefill: Any = None, decode: Any = None, **waits: Any) -> None:
        for part, more in (("prefill", prefill or {}), ("decode", decode or {})):
            settings: Any = HandoverSettings(protocol=self.protocol, part=part, **waits)  # type: ignore[arg-type]
            dialect = "sglang" if self.protocol == "sglang" else "vllm"
            engine = EmulatedEngine(
                EngineSettings(**FAST | {"dialect": dialect, "handover": settings} | more)
            )
            self.engines.append(await self._stack.enter_async_context(engine))
            self.pools.append(WorkerPool(engine.url, rules=self.rules))
            self._stack.callback(self.pools[-1].close)

    @property
    def prefill(self) -> EmulatedEngine:
        return self.engines[0]

    @property
    def decode(self) -> EmulatedEngine:
        return self.engines[1]

    def send(self, endpoint: Endpoint = Endpoint.COMPLETIONS, **more: Any) -> tuple[Any, HeardPair]:
        """Send a request; return what it hears."""
        body = {"model": "emulated", "prompt": PROMPT, "max_tokens": 20, "ignore_eos": True} | more
        handover: Any = self.prefill.handover
        labels = {"bootstrap_port": str(handover.port)} if handover is not None else {}
        at = pair(
            worker("p", self.pools[0], **labels),
            worker("d", self.pools[1]),
            json.dumps(body).encode(),
            endpoint,
        )
        sink = HeardPair()
        return self.handover.send(at, sink), sink

    async def heard(self, **more: Any) -> tuple[Any, HeardPair]:
        """Wait until a request has ended, with an answer or an error."""
        request, sink = self.send(**more)
        await until(lambda: sink.over)
        return request, sink

    async def recovered(self, **more: Any) -> None:
        """Bring an engine back; some moments later requests are answered again."""
        async with asyncio.timeout(60):
            while (await self.heard(**more))[1].said != DECODED:
                pass

    async def idle(self) -> None:
        """Wait until no engine runs, waits or holds room, and no connection is in use."""
        for engine in self.engines:
            at = engine.scheduler
            await until(lambda at=at: not (at.running or at.waiting or at.used_tokens))
        for pool in self.pools:
            await until(lambda pool=pool: not (pool.in_use or pool.waiting))


@pytest.fixture(params=HAND_OVERS)
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        yield Stage(request.param, stack)


@pytest.fixture
async def alone() -> AsyncIterator[Callable[..., Any]]:
    """The answer of an engine without a partner."""
    async with AsyncExitStack() as stack:

        async def ask(**more: Any) -> str:
            stage = Stage("nixl", stack)
            engine = EmulatedEngine(EngineSettings(**FAST | {"dialect": "sglang"}))
            await stack.enter_async_context(engine)
            stage.engines = [engine, engine]
            stage.pools = [WorkerPool(engine.url)] * 2
            stack.callback(stage.pools[0].close)
            _, sink = await stage.heard(**more)
            return text_of(sink)

        yield ask


def text_of(sink: HeardPair) -> str:
    """The text of an answer, whole or streamed."""
    assert sink.status == 200
    if sink.body.startswith(b"{"):
        return str(json.loads(sink.body)["choices"][0]["text"])
    events = [line[6:] for line in sink.body.decode().split("\n\n") if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


DECODED = ["prefilled", "shipped", "head", "end"]


@pytest.mark.parametrize("stream", [False, True])
async def test_two_engines_answer_as_one_would(stage: Stage, alone: Any, stream: bool) -> None:
    await stage.start()
    request, sink = await stage.heard(stream=stream)

    assert sink.said == DECODED
    assert text_of(sink) == await alone()
    assert request.leg is Leg.DECODE
    await until(lambda: find_usage(Endpoint.COMPLETIONS, request.usage))
    await stage.idle()
    received = stage.decode.handover.counters.received_tokens  # type: ignore[union-attr]
    assert received == len(PROMPT)
    assert not any(stage.handover.counts.values())


async def test_the_prefill_engine_tells_what_it_had_of_the_prompt(stage: Stage) -> None:
    """18 blocks of 16, below the last token."""
    await stage.start()
    await stage.heard()
    request, _ = await stage.heard()

    usage = find_usage(Endpoint.COMPLETIONS, request.usage)
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens) == (300, 288)


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.GENERATE])
async def test_every_endpoint_that_is_split_is_answered(stage: Stage, endpoint: Endpoint) -> None:
    await stage.start()
    messages = [{"role": "user", "content": "hello " * 50}]
    request, sink = stage.send(endpoint, messages=messages, text="hello " * 50)
    if not stage.handover.splits(request_of(endpoint)):
        request.abort()
        await stage.idle()
        return
    await until(lambda: sink.over)

    assert (sink.said, sink.status) == (DECODED, 200)
    await stage.idle()


def request_of(endpoint: Endpoint) -> Any:
    return pair(worker("p", None), worker("d", None), b'{"model":"m"}', endpoint).parsed


async def test_a_long_prompt_arrives_whole_at_both(stage: Stage) -> None:
    """1 MB, more than a socket takes at once."""
    await stage.start()
    request, sink = stage.send(Endpoint.COMPLETIONS, prompt="word " * 200_000, max_tokens=2)
    await until(lambda: sink.over)

    assert sink.said == DECODED
    usage = find_usage(Endpoint.COMPLETIONS, sink.body)
    assert usage is not None
    assert usage.prompt_tokens == find_usage(Endpoint.COMPLETIONS, request.usage).prompt_tokens  # type: ignore[union-attr]
    await stage.idle()


async def test_every_prompt_of_a_batch_has_a_room() -> None:
    async with AsyncExitStack() as stack:
        stage = Stage("sglang", stack)
        await stage.start()
        _, sink = await stage.heard(prompt=[PROMPT, PROMPT[:50], PROMPT[50:]])

        assert [choice["index"] for choice in json.loads(sink.body)["choices"]] == [0, 1, 2]
        await stage.idle()


# The prefill leg fails.


async def check_prefill_failure(stage: Stage, **more: Any) -> tuple[Any, HeardPair]:
    """The request fails by its prefill leg before the client got anything; the decode engine is free."""
    request, sink = await stage.heard(**more)
    assert request.leg is Leg.PREFILL
    assert "prefilled" not in sink.said
    await stage.idle()
    return request, sink


async def test_a_prefill_engine_that_is_gone_fails_the_request_at_once(stage: Stage) -> None:
    await stage.start()
    stage.prefill.inject(Fault("refuse"))
    _, sink = await check_prefill_failure(stage)

    assert isinstance(sink.error, UpstreamError)
    if stage.protocol != "mooncake":  # its bootstrap server is gone, too
        assert isinstance(sink.error, WorkerRefused)
    stage.prefill.accept()
    await stage.recovered()


@pytest.mark.parametrize("kind", ["reset", "close", "garbage"])
async def test_a_prefill_leg_that_breaks_off_ends_the_decode_leg(stage: Stage, kind: Any) -> None:
    await stage.start()
    stage.prefill.inject(Fault(kind, count=1))
    _, sink = await check_prefill_failure(stage)

    assert isinstance(sink.error, UpstreamError)
    assert not isinstance(sink.error, StreamBroken)


async def test_a_prefill_leg_that_stalls_ends_the_decode_leg(stage: Stage) -> None:
    stage.rules = UpstreamRules(first_byte_timeout_s=0.2)
    await stage.start()
    stage.prefill.inject(Fault("stall", count=1))
    _, sink = await check_prefill_failure(stage)

    assert isinstance(sink.error, WorkerSilent)


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_an_error_of_the_prefill_engine_is_the_answer(stage: Stage, status: int) -> None:
    await stage.start()
    stage.prefill.inject(Fault("error", count=1, status=status))
    _, sink = await check_prefill_failure(stage)

    assert (sink.said, sink.status) == (["head", "end"], status)
    assert b"injected fault" in sink.body


async def test_a_prefill_engine_that_dies_while_it_computes_ends_the_decode_leg(stage: Stage) -> None:
    await stage.start(prefill={"prefill_tokens_per_s": 100})
    request, sink = stage.send()
    await until(lambda: stage.prefill.scheduler.running)
    stage.prefill.inject(Fault("crash"))
    await until(lambda: sink.over)

    assert request.leg is Leg.PREFILL
    assert isinstance(sink.error, UpstreamError)
    stage.prefill.accept()
    await stage.recovered(prompt=PROMPT[:10])
    await stage.idle()


@pytest.mark.parametrize("protocol", ["sglang", "mooncake"])
async def test_a_prefill_leg_that_an_operator_aborts_ends_the_decode_leg(protocol: str) -> None:
    """The prefill engine answers 200, and sends nothing."""
    async with AsyncExitStack() as stack:
        stage = Stage(protocol, stack)
        await stage.start(prefill={"prefill_tokens_per_s": 1})
        request, sink = stage.send()
        await until(lambda: stage.prefill.scheduler.running)
        stage.prefill.scheduler.abort_id("")
        await until(lambda: sink.over)

        assert request.leg is Leg.PREFILL
        assert isinstance(sink.error, HandoverFailed)
        await stage.idle()


async def test_an_engine_that_hands_nothing_over_is_told_of_and_the_prompt_computed_again() -> None:
    async with AsyncExitStack() as stack:
        stage = Stage("nixl", stack)
        await stage.start(prefill={"handover": None})
        _, sink = await stage.heard()

        assert sink.said == DECODED
        assert stage.handover.counts["params_missing"] == 1
        assert stage.decode.handover.counters.received_tokens == 0  # type: ignore[union-attr]
        await stage.idle()


# The decode leg fails. A prefill engine of vLLM that is done by then keeps the KV until its time is over.


def let_go_soon(stage: Stage, times: float = 1.0) -> dict[str, float]:
    """Short leases of KV; longer by a factor in a test whose decode legs mostly come in time."""
    return {"nixl": {"lease_s": 0.05 * times}, "mooncake": {"waiting_s": 0.2 * times}}.get(stage.protocol, {})


@pytest.mark.parametrize("kind", ["reset", "close", "garbage"])
async def test_a_decode_leg_that_breaks_off_ends_the_prefill_leg(stage: Stage, kind: Any) -> None:
    await stage.start(**let_go_soon(stage))
    stage.decode.inject(Fault(kind, count=1))
    request, sink = await stage.heard()

    assert request.leg is Leg.DECODE
    assert isinstance(sink.error, UpstreamError)
    await stage.idle()


async def test_a_decode_engine_that_is_gone_ends_the_prefill_leg(stage: Stage) -> None:
    await stage.start(**let_go_soon(stage))
    stage.decode.inject(Fault("refuse"))
    request, sink = await stage.heard()

    assert request.leg is Leg.DECODE
    assert isinstance(sink.error, WorkerRefused)
    stage.decode.accept()
    await stage.recovered()
    await stage.idle()


async def test_a_decode_leg_that_stalls_ends_the_prefill_leg(stage: Stage) -> None:
    stage.rules = UpstreamRules(first_byte_timeout_s=0.2)
    await stage.start(**let_go_soon(stage))
    stage.decode.inject(Fault("stall", count=1))
    request, sink = await stage.heard(stream=True)

    # With SGLang neither leg has a first byte: the prefill leg waits for its partner as long.
    assert request.leg is Leg.DECODE or stage.protocol == "sglang"
    assert isinstance(sink.error, WorkerSilent)
    await stage.idle()


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_an_error_of_the_decode_engine_is_the_answer(stage: Stage, status: int) -> None:
    await stage.start(**let_go_soon(stage))
    stage.decode.inject(Fault("error", count=1, status=status))
    request, sink = await stage.heard()

    assert request.leg is Leg.DECODE
    if (stage.protocol, status) == ("nixl", 500):  # its answer if it could not fetch the KV
        assert isinstance(sink.error, TransferFailed)
    else:
        assert (sink.said[-2:], sink.status) == (["head", "end"], status)
    await stage.idle()


@pytest.mark.parametrize("kind", ["reset", "close", "garbage"])
@pytest.mark.parametrize("chunks", [1, 3])
async def test_a_decode_leg_that_breaks_off_after_the_first_byte_breaks_the_stream(
    stage: Stage, kind: Any, chunks: int
) -> None:
    """The whole answer takes 2 s, since an engine that was stalled sends many tokens in one chunk."""
    await stage.start()
    stage.decode.inject(Fault(kind, count=1, after_chunks=chunks))
    request, sink = await stage.heard(stream=True, max_tokens=2_000)

    assert request.leg is Leg.DECODE
    assert sink.said == ["prefilled", "shipped", "head", "failed"]
    assert isinstance(sink.error, StreamBroken)
    await stage.idle()


async def test_a_stream_that_begins_with_an_error_fails_unseen() -> None:
    """VLLM has sent its head before it notices that it cannot fetch the KV."""
    async with AsyncExitStack() as stack:
        stage = Stage("nixl", stack)
        await stage.start(lease_s=0.05)
        _, sink = await stage.heard()
        assert sink.said == DECODED
        other = Stage("nixl", stack)
        await other.start(lease_s=0.05)
        stage.prefill.handover.close()  # type: ignore[union-attr]
        stage.engines[1], stage.pools[1] = other.engines[1], other.pools[1]
        request, sink = await stage.heard(stream=True, prompt=PROMPT[::-1])

        assert request.leg is Leg.DECODE
        assert sink.said == ["prefilled", "failed"]


# The client leaves.


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_anything_was_sent_leaves_nothing(
    stage: Stage, stream: bool
) -> None:
    await stage.start(**let_go_soon(stage))
    request, sink = stage.send(stream=stream)
    request.abort()
    await stage.idle()

    assert sink.said == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_is_prefilled_frees_both_engines(
    stage: Stage, stream: bool
) -> None:
    """At this speed the prompt would take 300 s."""
    await stage.start(prefill={"prefill_tokens_per_s": 1})
    request, sink = stage.send(stream=stream)
    await until(lambda: stage.prefill.scheduler.running)
    request.abort()
    await stage.idle()

    assert sink.said == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_it_is_decoded_frees_both_engines(
    stage: Stage, stream: bool
) -> None:
    """At this speed the answer would take 2,000 s."""
    await stage.start(decode={"tpot_ms": 100_000}, **let_go_soon(stage))
    request, sink = stage.send(stream=stream)
    await until(lambda: "prefilled" in sink.said and stage.decode.scheduler.running)
    request.abort()
    said = list(sink.said)
    await stage.idle()

    assert sink.said == said


async def test_a_client_that_leaves_while_its_answer_comes_frees_both_engines(stage: Stage) -> None:
    await stage.start(decode={"tpot_ms": 50})
    request, sink = stage.send(stream=True, max_tokens=100_000)
    await until(lambda: sink.body)
    request.abort()
    heard = sink.body
    await stage.idle()

    assert sink.said == ["prefilled", "shipped", "head"]
    assert sink.body == heard


async def test_a_client_that_leaves_while_its_decode_leg_waits_for_room_frees_what_it_has(
    stage: Stage,
) -> None:
    """The decode engine runs one request at a time, and the first takes 2,000 s."""
    await stage.start(decode={"max_running": 1, "tpot_ms": 100_000}, **let_go_soon(stage))
    first, _ = stage.send()
    await until(lambda: stage.decode.scheduler.running)
    request, sink = stage.send(prompt=PROMPT[::-1])
    await until(lambda: stage.decode.scheduler.waiting)
    request.abort()
    await until(lambda: not stage.decode.scheduler.waiting)
    first.abort()
    await stage.idle()

    assert "shipped" not in sink.said


async def test_a_client_that_reads_slowly_holds_up_its_decode_leg_and_nothing_else(stage: Stage) -> None:
    await stage.start()
    request, sink = stage.send(stream=True, max_tokens=3_000)
    await until(lambda: sink.body)
    request.pause()
    await until(lambda: not stage.pools[0].in_use)
    paused_at = len(sink.body)
    await asyncio.sleep(0.05)
    assert len(sink.body) == paused_at
    request.resume()
    await until(lambda: sink.over)

    assert sink.said == DECODED
    assert sink.body.endswith(b"data: [DONE]\n\n")
    await stage.idle()


async def test_many_requests_of_which_some_are_left_and_some_fail_leave_nothing(stage: Stage) -> None:
    """At most 20 requests are in flight, so that their KV is fetched long before its lease ends."""
    await stage.start(**let_go_soon(stage, 10))
    sent: list[tuple[Any, HeardPair]] = []
    for number in range(200):
        if number % 10 == 3:
            stage.prefill.inject(Fault("reset", count=1))
        if number % 10 == 7:
            stage.decode.inject(Fault("error", count=1))
        sent.append(stage.send(prompt=PROMPT[number:] + PROMPT[:number], stream=number % 2 == 0))
        if number % 5 == 4:
            sent[-1][0].abort()
            sent.pop()
        await until(lambda: sum(not sink.over for _, sink in sent) < 20)
    await until(lambda: all(sink.over for _, sink in sent))
    await stage.idle()

    assert sum(sink.said == DECODED and sink.status == 200 for _, sink in sent) > 10
