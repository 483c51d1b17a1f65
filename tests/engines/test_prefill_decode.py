"""A prefill and a decode vLLM that hand KV over by NIXL, through the gateway: correct in each failure.

    client ──> gateway ──> prefill engine <──KV──┐
                  └──> gate ──> decode engine ───┘     the gate holds decode legs, or makes them wrong

UCX spins a thread in each of these engines, so even an idle pair takes two cores: nothing is timed here, and
these tests run only if the environment asks for them:

    CACHEWAY_ENGINES_PAIRS=1 python -m pytest tests/engines/test_prefill_decode.py      (17 min, 4 GB)

The decode engine alone gives the expected answer, under a separate salt: it has nothing of it cached, and
without KV parameters it computes prompts itself. The text of such models is noise and often the same, so log
probabilities are compared, too, if the API has them.
"""

import asyncio
import contextlib
import json
import os
import random
import re
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fakes.gate import Gate
from fakes.real_engines import engines_with, random_ids, random_words
from fakes.running import Fleet, RunningGateway, until, until_async

from loadtest.processes import free_port
from loadtest.vllm import MODEL_NAME, VllmServer, VllmSettings
from policies import Circuit
from router.fleet import Health, LocalWorker

ASKED = "CACHEWAY_ENGINES_PAIRS"
LEASE_S = 5
SLOW_CLASS = "8xh200-1t-hybrid"
"""Class of the decode worker: an assumed prefill of 0.4 s keeps whole requests off it when it is idle."""

ANSWER_S = 240.0
"""A hang is longer: the gateway would wait 300 s, and an engine would wait for its partner for ever. While
UCX keeps two cores busy, it may need a minute to notice that its peer has died."""

CB_FAILURES = 4
BLOCK_TOKENS = 32
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
STREAMED = [pytest.param(True, id="stream"), pytest.param(False, id="whole")]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


def _settings(model: str, role: str) -> VllmSettings:
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"num_threads": 1, "kv_lease_duration": LEASE_S},
    }
    return VllmSettings(
        model=model,
        max_model_tokens=2048,
        kv_blocks=400,
        running_max=8,
        step_tokens_max=512,
        flags=("--kv-transfer-config", json.dumps(transfer)),
        environment={
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            "UCX_NET_DEVICES": "lo",
            "UCX_TLS": "tcp,self",
            # Without this the engine compiles log probabilities, for minutes on a busy machine.
            "TORCHDYNAMO_DISABLE": "1",
        },
    )


def _pair_of(model: str) -> pytest.MarkDecorator:
    return engines_with(_settings(model, "kv_producer"), _settings(model, "kv_consumer"))


QWEN3, MIMO_V2 = _pair_of("qwen3"), _pair_of("mimo_v2")
EACH_MODEL = pytest.mark.parametrize(
    "model", [pytest.param("qwen3", marks=QWEN3), pytest.param("mimo_v2", marks=MIMO_V2)]
)

pytestmark = pytest.mark.skipif(ASKED not in os.environ, reason=f"takes two cores: set {ASKED}=1")


class Pair:
    """Two engines, the gate, and a gateway before them."""

    def __init__(self, gateway: RunningGateway, prefill: VllmServer, decode: VllmServer, gate: Gate) -> None:
        self.gateway = gateway
        self.prefill = prefill
        self.decode = decode
        self.gate = gate

    async def ask(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Ask the pair."""
        return await self.gateway.client.post(path, json=_asked(path, body), timeout=ANSWER_S)

    async def alone(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Ask one engine, which has nothing of the prompt cached."""
        async with httpx.AsyncClient(base_url=self.decode.url, trust_env=False, timeout=ANSWER_S) as client:
            return await client.post(path, json=_asked(path, body) | {"cache_salt": secrets.token_hex(8)})

    async def right(self, path: str, body: dict[str, Any], *, split: bool = True) -> httpx.Response:
        """Ask the pair; require one engine's answer, and a KV transfer if one is due."""
        before = await self.crossed_tokens()
        answer = await self.ask(path, body)
        assert answer.status_code == 200, answer.text
        assert ("x-cacheway-prefill-worker" in answer.headers) == split, await self.told()
        assert (await self.crossed_tokens() > before) == split
        _compare(answer, await self.alone(path, body))
        return answer

    async def told(self) -> str:
        """Return the gateway's last decision, and the failures so far."""
        decisions = (await self.gateway.client.get("/decisions", params={"limit": 1})).text
        page = self.gateway.process.metrics.exposition()[0].decode()
        failed = [
            line
            for line in page.splitlines()
            if re.match(r"cacheway_(leg_failures|handover_events|retries|upstream_errors)", line)
        ]
        return "\n".join((decisions, *failed))

    async def crossed_tokens(self) -> float:
        """Tokens whose KV the decode engine has fetched so far."""
        return await self.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")

    async def free(self) -> None:
        """Wait, at most for a lease, until nothing is reserved and no engine runs or keeps anything."""
        await until(self.gateway.idle)
        for engine in (self.prefill, self.decode):
            if engine.running:
                for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
                    await until_async(lambda engine=engine, name=name: _zero(engine, name), within_s=30)  # type: ignore[misc]

    async def well(self) -> None:
        """Wait until the gateway finds both engines healthy."""
        workers = self.gateway.process.registry.all
        await until(
            lambda: all(local.health is Health.HEALTHY and local.models for local in workers()),
            within_s=ANSWER_S,
        )

    def worker(self, role: str) -> LocalWorker:
        """The gateway's view of an engine."""
        (local,) = (local for local in self.gateway.process.registry.all() if local.worker.role == role)
        return local

    def counted(self, start: str) -> bool:
        """True if a metric with these labels is not zero."""
        page = self.gateway.process.metrics.exposition()[0].decode()
        return any(line.startswith(start) and not line.endswith(" 0.0") for line in page.splitlines())


async def _zero(engine: VllmServer, name: str) -> bool:
    return await engine.metric(f"vllm:{name}") == 0


async def _front(fleet: Fleet, prefill: VllmServer, decode: VllmServer, prefill_url: str, gate: Gate) -> Pair:
    """A gateway before two engines, which knows no others."""
    gateway = await fleet.gateway(
        fleet={
            "prefill": [prefill_url],
            "decode": [f"{gate.url} worker_class={SLOW_CLASS}"],
            "health_check_timeout_s": 30.0,
            "slow_start_s": 0.0,
        },
        placement={"block_tokens": BLOCK_TOKENS, "prefill_tokens_per_s": 100_000.0},
        reliability={"cb_failure_threshold": CB_FAILURES},
        shared={"namespace": f"{fleet.namespace}-{secrets.token_hex(4)}"},
    )
    pair = Pair(gateway, prefill, decode, gate)
    await pair.well()
    return pair


async def shake_hands(prefill: VllmServer, decode: VllmServer) -> None:
    """Let the engines meet, past the gateway.

    The first time takes longer than the five seconds that NIXL waits, if two cores do all of this.
    """
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as client:

        async def met() -> bool:
            body = {"model": MODEL_NAME, "prompt": random_ids(random.Random(), 40), "max_tokens": 1}
            first = await client.post(
                f"{prefill.url}/v1/completions", json=body | {"kv_transfer_params": asked}
            )
            params = first.raise_for_status().json()["kv_transfer_params"]
            answer = await client.post(
                f"{decode.url}/v1/completions", json=body | {"kv_transfer_params": params}
            )
            return answer.status_code == 200

        await until_async(met, within_s=2 * ANSWER_S)


@pytest_asyncio.fixture(loop_scope="session")
async def pair(fleet: Fleet, servers: list[VllmServer]) -> AsyncIterator[Pair]:
    prefill, decode = servers
    await shake_hands(prefill, decode)
    async with Gate(decode.port) as gate:
        pair = await _front(fleet, prefill, decode, prefill.url, gate)
        yield pair
        gate.open()
        await pair.free()


@contextlib.contextmanager
def stopped(engine: VllmServer) -> Iterator[None]:
    """All processes of an engine are stopped."""
    os.killpg(engine.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGCONT)


# Right.


@EACH_MODEL
@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, MESSAGES])
async def test_a_pair_says_what_one_engine_says(
    pair: Pair, chance: random.Random, model: str, path: str, streamed: bool
) -> None:
    """Prompts: new, again, longer, forked, shorter than a block, in two steps, and token ids to the limit."""
    first, more = random_words(chance, 60), random_words(chance, 30)
    for text in (
        first,
        first,
        f"{first} {more}",
        f"{first[:200]} {more}",
        "hi hi",
        random_words(chance, 150),
    ):
        body = {"prompt": text} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
        await pair.right(path, {**body, "stream": streamed})
    if path == COMPLETIONS:
        await pair.right(path, {"prompt": random_ids(chance, 2040), "stream": streamed})
    await pair.free()


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": (COMPLETIONS, {"echo": True, "logprobs": None}),
    "stop": (COMPLETIONS, {"stop": ["a", "e"]}),
    "penalties": (COMPLETIONS, {"repetition_penalty": 1.3, "presence_penalty": 0.5}),
    "a client's own parameters": (COMPLETIONS, {"kv_transfer_params": {"do_remote_decode": True}}),
    "a minimum": (CHAT, {"max_tokens": None, "max_completion_tokens": 8, "min_tokens": 4}),
    "a schema": (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}},
    ),
    "tools": (CHAT, {"tools": TOOLS}),
    "tools required": (CHAT, {"tools": TOOLS, "tool_choice": "required", "max_tokens": 40}),
    "one tool required": (
        CHAT,
        {
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "max_tokens": 40,
        },
    ),
}


@QWEN3
@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("case", CASES)
async def test_what_a_request_asks_for_is_done_by_a_pair_too(
    pair: Pair, chance: random.Random, case: str, streamed: bool
) -> None:
    path, fields = CASES[case]
    prompt = {"prompt": random_ids(chance, 100)} if path == COMPLETIONS else _chat(chance)
    await pair.right(path, {**prompt, **fields, "stream": streamed})


@QWEN3
async def test_what_cannot_be_split_the_decode_engine_does_alone(pair: Pair, chance: random.Random) -> None:
    samples = {"prompt": random_ids(chance, 70), "n": 2, "temperature": 1.0, "seed": 7}
    assert len((await pair.right(COMPLETIONS, samples, split=False)).json()["choices"]) == 2
    scored = {"prompt": random_ids(chance, 70), "echo": True}
    assert len(_said(await pair.right(COMPLETIONS, scored, split=False))[1]) == 77
    prompts = {"prompt": [random_ids(chance, 70), random_ids(chance, 40)]}
    assert len((await pair.right(COMPLETIONS, prompts, split=False)).json()["choices"]) == 2
    answer = await pair.ask("/v1/responses", {"input": random_words(chance, 30), "max_output_tokens": 4})
    assert (answer.status_code, "x-cacheway-prefill-worker" in answer.headers) == (200, False)


@QWEN3
async def test_a_request_that_is_at_fault_is_told_so_by_the_engine(pair: Pair) -> None:
    answer = await pair.ask(COMPLETIONS, {"prompt": [300] * 3000})
    assert answer.status_code == 400
    assert "maximum context length" in answer.json()["error"]["message"]


@EACH_MODEL
async def test_what_a_decode_engine_reports_as_cached_takes_nothing_from_the_tree(
    pair: Pair, chance: random.Random, model: str
) -> None:
    """The decode engine reports its partner's cached tokens: 0 of a prompt that both hold afterwards."""
    tree, registry = pair.gateway.process.fleet.tree, pair.gateway.process.registry
    blocks = 10
    tokens = blocks * BLOCK_TOKENS
    prompt = random_ids(chance, tokens + 8)
    for cached_tokens in (0, tokens):
        usage = (await pair.right(COMPLETIONS, {"prompt": prompt})).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached_tokens
        assert {tree.held_blocks(local.worker.slot) for local in registry.all()} == {blocks}

    warm = random_ids(chance, tokens + 8)
    async with httpx.AsyncClient(base_url=pair.prefill.url, trust_env=False, timeout=ANSWER_S) as client:
        await client.post(COMPLETIONS, json=_asked(COMPLETIONS, {"prompt": warm}))
    before = await pair.crossed_tokens()
    usage = (await pair.ask(COMPLETIONS, {"prompt": warm})).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == tokens, "of the prefill engine"
    assert await pair.crossed_tokens() - before == len(warm), "the decode engine had nothing of it"


# Failures.


def _stale(data: bytes) -> bytes:
    """Replace the id of the prefill engine by that of another process, each time."""
    return re.sub(
        rb'("remote_engine_id": ?")[0-9a-f]{8}', lambda found: found[1] + secrets.token_hex(4).encode(), data
    )


def _elsewhere(data: bytes) -> bytes:
    """Also replace the port by one without a listener: a side channel that only its own host reaches."""
    return re.sub(rb'("remote_port": ?)\d{5}', rb"\g<1>%d" % free_port(), _stale(data))


def _keeps_nothing(data: bytes) -> bytes:
    """Ask for no KV, as of an engine without a connector."""
    return data.replace(b'"do_remote_decode":true', b'"do_remote_decode":null')


def _each_kind(chance: random.Random) -> list[tuple[str, dict[str, Any]]]:
    """A streamed chat, which opens before it fails, and a completion that comes whole."""
    return [
        (CHAT, {**_chat(chance), "stream": True}),
        (COMPLETIONS, {"prompt": random_ids(chance, 300), "stream": False}),
    ]


class Asked:
    """A request of each kind on its way."""

    def __init__(self, pair: Pair, chance: random.Random) -> None:
        self._pair = pair
        self._asked = _each_kind(chance)
        self._tasks = [asyncio.create_task(pair.ask(path, body)) for path, body in self._asked]

    async def held(self) -> None:
        """Wait until the decode legs stand at the gate."""
        await until(lambda: self._pair.gate.held == len(self._tasks), within_s=ANSWER_S)

    async def answered(self) -> None:
        """Wait for the answers, each of which must equal one engine's."""
        for (path, body), task in zip(self._asked, self._tasks, strict=True):
            answer = await task
            assert answer.status_code == 200, answer.text
            _compare(answer, await self._pair.alone(path, body))
        await self._pair.free()

    async def refused(self) -> None:
        """Wait for the errors."""
        for task in self._tasks:
            answer = await task
            assert answer.status_code in (502, 503, 504)
            assert answer.json()["error"]["code"]
        await until(self._pair.gateway.idle)

    def leave(self) -> None:
        """Their clients close their connections."""
        for task in self._tasks:
            task.cancel()


@EACH_MODEL
async def test_an_engine_id_that_nobody_has_costs_a_prefill(
    pair: Pair, chance: random.Random, model: str
) -> None:
    pair.gate.change = _stale
    await Asked(pair, chance).answered()
    assert pair.counted("cacheway_leg_failures_total")

    pair.gate.change = bytes
    await pair.right(*_each_kind(chance)[0])


@QWEN3
async def test_a_prefill_engine_that_cannot_be_reached_from_its_partner_is_ejected(
    pair: Pair, chance: random.Random
) -> None:
    """Each request waits 5 s for its handshake; the decode engine then serves it alone, and stays."""
    pair.gate.change = _elsewhere
    for _ in range(CB_FAILURES // 2):
        await Asked(pair, chance).answered()
    state = pair.gateway.process.registry.circuits.state
    assert state(pair.worker("prefill")) is Circuit.OPEN
    assert state(pair.worker("decode")) is Circuit.CLOSED
    await Asked(pair, chance).answered()


@QWEN3
async def test_a_prefill_engine_that_keeps_nothing_costs_a_prefill(
    pair: Pair, fleet: Fleet, chance: random.Random
) -> None:
    async with Gate(pair.prefill.port) as gate:
        gate.change = _keeps_nothing
        other = await _front(fleet, pair.prefill, pair.decode, gate.url, pair.gate)
        before = await pair.crossed_tokens()
        await Asked(other, chance).answered()
        assert await pair.crossed_tokens() == before
        assert other.counted('cacheway_handover_events_total{event="params_missing"')


@QWEN3
async def test_kv_whose_lease_has_passed_is_no_hang(pair: Pair, chance: random.Random) -> None:
    """The engine still gives it out, as long as nothing else was written over it."""
    pair.gate.close()
    asked = Asked(pair, chance)
    await asked.held()
    await until_async(lambda: _zero(pair.prefill, "kv_cache_usage_perc"), within_s=6 * LEASE_S)
    assert await pair.prefill.metric("vllm:nixl_num_kv_expired_reqs_total") >= 2
    pair.gate.open()
    await asked.answered()


@EACH_MODEL
async def test_clients_that_leave_between_the_legs_leave_nothing_behind(
    pair: Pair, chance: random.Random, model: str
) -> None:
    pair.gate.close()
    asked = Asked(pair, chance)
    await asked.held()
    asked.leave()
    await pair.free()


@EACH_MODEL
async def test_a_prefill_engine_killed_in_mid_transfer_costs_a_prefill_and_comes_back(
    pair: Pair, chance: random.Random, model: str
) -> None:
    pair.gate.close()
    asked = Asked(pair, chance)
    await asked.held()
    with stopped(pair.prefill):
        pair.gate.open()

        async def fetching() -> bool:
            return await pair.decode.metric("vllm:num_requests_waiting") == 2

        await until_async(fetching, within_s=ANSWER_S)
        await pair.prefill.kill()
    await asked.answered()
    assert pair.counted("cacheway_leg_failures_total")
    await Asked(pair, chance).answered()

    await pair.prefill.start()
    await pair.well()
    await shake_hands(pair.prefill, pair.decode)
    await pair.right(*_each_kind(chance)[0])


@QWEN3
async def test_a_prefill_engine_killed_in_mid_prefill_costs_a_prefill(
    pair: Pair, chance: random.Random
) -> None:
    with stopped(pair.prefill):
        asked = Asked(pair, chance)
        await until(lambda: pair.worker("prefill").pool.in_use == 2)
        await pair.prefill.kill()
    await asked.answered()


@QWEN3
async def test_a_decode_engine_that_is_killed_is_told_of(pair: Pair, chance: random.Random) -> None:
    """No engine is left that could decode; the partner's blocks are free when their lease has passed."""
    pair.gate.close()
    asked = Asked(pair, chance)
    await asked.held()
    await pair.decode.kill()
    pair.gate.open()
    await asked.refused()
    await pair.free()


def _asked(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A whole body."""
    usual: dict[str, Any] = {"model": MODEL_NAME, "temperature": 0, "max_tokens": 8}
    if path == COMPLETIONS:
        usual |= {"ignore_eos": True, "logprobs": 1}
    elif path == CHAT:
        usual |= {"logprobs": True}
    return {name: value for name, value in {**usual, **body}.items() if value is not None}


def _chat(chance: random.Random) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": random_words(chance, 40)}]}


def _compare(one: httpx.Response, other: httpx.Response) -> None:
    """Both give the same text, tool calls, finish reasons, and log probabilities but for rounding."""
    assert other.status_code == 200, other.text
    said, expected = _said(one), _said(other)
    assert said[0] == expected[0]
    assert said[1] == pytest.approx(expected[1], abs=1e-3)


def _said(answer: httpx.Response) -> tuple[str, list[float]]:
    """Return an answer without ids, times and the cuts of a stream, and its log probabilities."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [
            line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")
        ]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
    else:
        events = [answer.json()]
    said = ends = ""
    logprobs: list[float] = []
    for event in events:
        assert "error" not in event
        for part in (*event.get("content", ()), event.get("delta", {})):
            said += part.get("text", "")
            ends += part.get("stop_reason") or ""
        ends += event.get("stop_reason") or ""
        for choice in event.get("choices", ()):
            message = choice.get("delta") or choice.get("message") or {}
            said += choice.get("text") or message.get("content") or ""
            for call in message.get("tool_calls") or ():
                said += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
            ends += choice["finish_reason"] or ""
            found = choice.get("logprobs") or {}
            logprobs += [each["logprob"] for each in found.get("content") or ()]
            logprobs += [each for each in found.get("token_logprobs") or () if each is not None]
    assert ends
    return f"{said} ({ends})", logprobs
