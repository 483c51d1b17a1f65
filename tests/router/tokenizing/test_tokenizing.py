"""Prompts that get ids, prompts that keep their text, and bounded waits."""

import asyncio
import json
import logging
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.gateway import Bench
from fakes.tokenizers import write

from radix import chain_token_ids
from router.errors import SettingsError
from router.gateway.endpoints import Endpoint
from router.gateway.identity import Identity
from router.gateway.parsing import Identifier, ParsedRequest
from router.metric_families import TOKENIZED_PROMPTS, TOKENIZING_MISCOUNTS
from router.metrics import Metrics
from router.settings import Settings
from router.tenant import Tenant
from router.tokenizing import check_tokenizers, opened_tokenizing, tokenizing
from router.tokenizing.engine import EngineTokenizer
from router.tokenizing.local import LocalTokenizer
from router.tokenizing.lru import Remembered
from router.tokenizing.refusal import Cause, NotTokenized
from router.tokenizing.tokenizing import INLINE_BYTES_MAX, MISCOUNTS_MAX, SET_ASIDE_S, Key, Tokenizing

LONG = "word " * INLINE_BYTES_MAX
IDS = list(range(100))

identifier = Identifier("test", block_tokens=16, block_bytes=64)
identifier.finds_roots = True


class Slow(LocalTokenizer):
    """Finds the same ids for all prompts, once the test lets it."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = None
        self.let = threading.Event()
        self.let.set()

    def variant(self) -> str:
        return ""

    def packed(self, endpoint: Endpoint, body: bytes) -> list[bytes]:
        self.calls += 1
        assert self.let.wait(30)
        if self.error is not None:
            raise self.error
        return [array("I", IDS).tobytes()]


class Setup:
    def __init__(self, limit_s: float = 30.0, engine: EngineTokenizer | None = None) -> None:
        self.slow, self.metrics = Slow(), Metrics("test")
        self.tokenizing = Tokenizing(
            {"m": engine or self.slow, "plain": None},
            identifier.hasher,
            asyncio.get_running_loop(),
            limit_s=limit_s,
            threads=1,
            remembered=Remembered[Key, Identity](1 << 20),
            metrics=self.metrics,
        )
        self.done: list[ParsedRequest] = []

    @property
    def how(self) -> list[str]:
        """Return how each prompt got its ids, or why not, one after the other."""
        return [how for (how,) in self.metrics.counts[TOKENIZED_PROMPTS].events]

    def begin(self, text: str, **more: Any) -> tuple[ParsedRequest, ParsedRequest | None]:
        parsed, body = request(text, **more)
        return parsed, self.tokenizing.begin(parsed, body, self.done.append)

    async def now(self, text: str, **more: Any) -> ParsedRequest:
        return await self.tokenizing.now(*request(text, **more))


def request(
    text: str, endpoint: Endpoint = Endpoint.CHAT, tenant: Tenant | None = None, **more: Any
) -> tuple[ParsedRequest, bytes]:
    prompt = {"messages": [{"role": "user", "content": text}], "prompt": text, "input": text}
    body = json.dumps({"model": "m", **prompt, **more}).encode()
    return identifier.parse(endpoint, body, **({} if tenant is None else {"tenant": tenant})), body


def exact(parsed: ParsedRequest) -> bool:
    """True if the request has the ids that `Slow` finds."""
    assert parsed.ids_root is not None
    return (
        parsed.paths == (chain_token_ids(IDS, parsed.ids_root, 16),)
        and (parsed.prompt_token_ids, parsed.prompt_bytes) == (len(IDS), 0)
        and parsed.tokenized_bytes > 0
    )


async def test_a_short_prompt_is_tokenized_at_once_and_a_long_one_in_a_thread() -> None:
    setup = Setup()
    _, found = setup.begin("short")
    assert found is not None
    assert exact(found)
    _, found = setup.begin(LONG)
    assert found is None
    assert exact(await setup.now(LONG))
    assert setup.how == ["at_once", "in_a_thread", "in_a_thread"]
    assert exact(setup.done[0])


async def test_what_was_seen_before_is_looked_up() -> None:
    setup = Setup()
    for text in ("short", LONG):
        first = await setup.now(text)
        _, again = setup.begin(text)
        assert again == first
    assert setup.how == ["at_once", "remembered", "in_a_thread", "remembered"]
    assert setup.slow.calls == 2


async def test_the_same_prompt_of_another_tenant_has_a_root_of_its_own() -> None:
    setup = Setup()
    one, other = await setup.now("a"), await setup.now("a", tenant=Tenant("t", salt="s" * 16, namespace=b"t"))
    assert one.paths != other.paths
    assert exact(one)
    assert exact(other)


async def test_equal_prompts_at_a_time_are_tokenized_once() -> None:
    setup = Setup()
    setup.slow.let.clear()
    waiting = [asyncio.create_task(setup.now(LONG)) for _ in range(12)]
    await asyncio.sleep(0)
    setup.slow.let.set()
    assert all(exact(found) for found in await asyncio.gather(*waiting))
    assert setup.slow.calls == 1


async def test_what_is_late_goes_on_as_text_and_is_there_for_the_next() -> None:
    setup = Setup(limit_s=1e-6)
    setup.slow.let.clear()
    parsed, _ = request(LONG)
    assert await setup.now(LONG) == parsed
    setup.slow.let.set()
    while setup.how[-1] != "remembered":
        await asyncio.sleep(0.001)
        _, found = setup.begin(LONG)
    assert found is not None
    assert exact(found)
    assert setup.how[0] == "late"
    assert set(setup.done) <= {parsed, found}


@pytest.mark.parametrize("text", ["short", LONG])
@pytest.mark.parametrize(
    "error", [NotTokenized(Cause.UNSUPPORTED, "media"), NotTokenized(Cause.FAILED, "x"), ValueError("a bug")]
)
async def test_what_fails_goes_on_as_text_and_is_said_once(
    text: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup()
    setup.slow.error = error
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await setup.now(text) == request(text)[0]
    expected = error.cause.value if isinstance(error, NotTokenized) else "failed"
    assert setup.how == [expected] * 3
    assert [line.event for line in caplog.records].count("tokenizing.refused") == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("endpoint", [Endpoint.EMBEDDINGS, Endpoint.RESPONSES, Endpoint.MESSAGES])
async def test_other_endpoints_keep_their_text_uncounted(endpoint: Endpoint) -> None:
    setup = Setup()
    parsed, found = setup.begin("short", endpoint=endpoint)
    assert found is parsed
    assert setup.how == []


async def test_models_without_a_tokenizer_and_ids_pass_by() -> None:
    setup = Setup()
    for parsed, found in (
        setup.begin("short", model="plain"),
        setup.begin("short", model="other"),
        setup.begin("", endpoint=Endpoint.COMPLETIONS, prompt=[1, 2, 3]),
        setup.begin("", messages=[]),
    ):
        assert found is parsed
    assert setup.how == []


async def test_what_engines_see_beside_ids_keeps_its_text() -> None:
    setup = Setup()
    parsed, found = setup.begin("short", mm_processor_kwargs={"x": 1})
    assert found is parsed
    assert setup.how == ["unsupported"]


async def test_bodies_that_are_too_large_keep_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "BODY_BYTES_MAX", 3000)
    setup = Setup()
    parsed, found = setup.begin("x" * 3000)
    assert found is parsed
    assert setup.how == ["too_large"]


@pytest.mark.parametrize("bound", [("JOBS_MAX", 2), ("JOBS_BYTES_MAX", 2 * len(LONG) + 400)])
async def test_what_waits_for_a_thread_is_bounded(
    bound: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizing, *bound)
    setup = Setup()
    setup.slow.let.clear()
    texts = [LONG + str(number) for number in range(3)]
    first = [
        setup.begin(text, messages=[{"role": "user", "content": text}], prompt="", input="") for text in texts
    ]
    assert [found is None for _, found in first] == [True, True, False]
    assert setup.how == ["busy"]
    setup.slow.let.set()
    while len(setup.done) < 2:  # noqa: ASYNC110 - threads wake the loop, not the test
        await asyncio.sleep(0.001)
    assert all(map(exact, setup.done))
    _, found = setup.begin(LONG + "later", prompt="", input="")
    assert found is None


async def test_who_waits_for_nothing_any_more_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was in the queue for too long is given up, so that others have their turn."""
    monkeypatch.setattr(tokenizing, "STALE_S", -1.0)
    setup = Setup()
    assert await setup.now(LONG) == request(LONG)[0]
    assert (setup.how, setup.slow.calls) == (["busy"], 0)


async def test_a_loop_that_ends_is_not_told() -> None:
    setup = Setup()
    setup.slow.let.clear()
    setup.begin(LONG)
    setup.tokenizing.close()
    setup.slow.let.set()


# Engines' counts.


async def test_a_model_whose_counts_differ_time_after_time_is_set_aside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    found = await setup.now("a")
    for _ in range(MISCOUNTS_MAX - 1):
        setup.tokenizing.answered(found, len(IDS) + 1)
    setup.tokenizing.answered(found, len(IDS))  # correct once: it was an accident
    assert exact(await setup.now("a"))
    for _ in range(MISCOUNTS_MAX):
        setup.tokenizing.answered(found, len(IDS) + 1)
    assert setup.metrics.counts[TOKENIZING_MISCOUNTS].events == [("m",)] * (2 * MISCOUNTS_MAX - 1)
    assert [line.event for line in caplog.records] == ["tokenizing.miscounted"]  # type: ignore[attr-defined]
    assert await setup.now("a") == request("a")[0]
    assert setup.how[-1] == "set_aside"
    setup.tokenizing._aside_until_s["m"] -= SET_ASIDE_S
    assert exact(await setup.now("a"))


# By asking an engine.


def engine(answer: Callable[[httpx.Request], httpx.Response], asked: list[str]) -> EngineTokenizer:
    def worker_of(model: str) -> str:
        asked.append(model)
        return "http://w:80"

    return EngineTokenizer(httpx.AsyncClient(transport=httpx.MockTransport(answer)), worker_of)


async def test_an_engine_is_asked_once_and_then_remembered() -> None:
    asked: list[str] = []
    setup = Setup(engine=engine(lambda _: httpx.Response(200, json={"tokens": IDS}), asked))
    found = await asyncio.gather(*(setup.now("short") for _ in range(5)))
    assert all(map(exact, found))
    assert exact(await setup.now("short"))
    assert asked == ["m"]
    assert setup.how == ["in_a_thread"] * 5 + ["remembered"]


async def test_an_engine_that_fails_leaves_the_text() -> None:
    setup = Setup(engine=engine(lambda _: httpx.Response(500), []))
    assert await setup.now("short") == request("short")[0]
    assert setup.how == ["failed"]
    setup.tokenizing.close()


# From the settings.


def placement(tokenizer: str, **more: Any) -> Any:
    return Settings.model_validate(
        {"placement": {"models": {"m": {"tokenizer": tokenizer}}, **more}}
    ).placement


def test_a_folder_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    check_tokenizers(Settings().placement)
    check_tokenizers(placement("engine"))
    check_tokenizers(placement(str(write(tmp_path / "m"))))
    with pytest.raises(SettingsError, match=r"placement\.models\.m\.tokenizer: .*cannot be read"):
        check_tokenizers(placement(str(tmp_path / "none")))


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.tokenizing.find_spec", lambda name: None)
    check_tokenizers(Settings().placement)
    with pytest.raises(SettingsError, match=r"the extra tokenizers"):
        check_tokenizers(placement("engine"))


async def test_a_gateway_tokenizes_as_its_settings_say(tmp_path: Path) -> None:
    bench = Bench()
    async with httpx.AsyncClient() as client:
        core, hasher, metrics = bench.core, bench.gateway.reader.hasher, bench.metrics
        assert opened_tokenizing(Settings().placement, core, hasher, client, metrics) is None
        said = placement(str(write(tmp_path / "m")))
        opened = opened_tokenizing(said, core, hasher, client, metrics)
    assert opened is not None
    bench.gateway.reader.identifier.finds_roots = True
    _, body = request("hello")
    parsed = bench.gateway.reader.parse(Endpoint.CHAT, body, Tenant(""))
    found = await opened.now(parsed, body)
    assert found.tokenized_bytes == parsed.prompt_bytes > 0
    opened.close()


async def test_engines_are_asked_in_turn() -> None:
    bench = Bench(workers=2)
    bench.gateway.loop = asyncio.get_running_loop()
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, json={"tokens": IDS})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        core, hasher, metrics = bench.core, bench.gateway.reader.hasher, bench.metrics
        opened = opened_tokenizing(placement("engine"), core, hasher, client, metrics)
        assert opened is not None
        bench.gateway.reader.identifier.finds_roots = True
        for text in ("a", "b", "c"):
            _, body = request(text)
            await opened.now(bench.gateway.reader.parse(Endpoint.CHAT, body, Tenant("")), body)
    assert asked == [f"http://{name}/tokenize" for name in ("w0", "w1", "w0")]
    opened.close()
