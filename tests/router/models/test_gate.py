"""Requests for adapters that no worker has wait for them; all others pass."""

import asyncio
from typing import Any

import msgspec
import orjson
import pytest
from fakes.gateway import Bench, chat
from fakes.running import until

from router.engines import Description
from router.errors import NoWorker
from router.fleet import ServedModel
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.model_rules import Adapter
from router.models import gate as gating
from router.models.adapters import Adapters
from router.models.choice import AdapterUse, Choice
from router.models.gate import AdapterGate
from router.models.loader import AdapterLoader
from router.shared import AdapterUses
from router.tenant import ANONYMOUS


class Loader(AdapterLoader):
    """Loads when the test says so."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.opens = asyncio.Event()
        self.firsts = self.forgets = 0
        self.reason = ""
        self.reading: asyncio.Task[None] | None = None
        self.uses = AdapterUses(bench.core.log.now_us)

    def stale(self) -> "asyncio.Task[None] | None":
        return self.reading

    def follow(self) -> None:
        pass

    def spread(self, adapters: Adapters, name: str) -> list[Any]:
        return []

    async def first(self, adapters: Adapters, name: str) -> str:
        self.firsts += 1
        await self.opens.wait()
        if not self.reason and self.firsts > self.forgets:
            (local,) = self.bench.registry.all()
            served = (ServedModel("m"), ServedModel(name, parent="m"))
            self.bench.registry.described(local, served, Description())
        return self.reason


class Tokenizing:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.begun: list[str | None] = []
        self.told: list[int] = []

    def begin(self, parsed: ParsedRequest, body: bytes, done: Any) -> ParsedRequest | None:
        self.begun.append(parsed.model)
        return parsed

    async def now(self, parsed: ParsedRequest, body: bytes) -> ParsedRequest:
        return parsed

    def answered(self, parsed: ParsedRequest, prompt_tokens: int) -> None:
        self.told.append(prompt_tokens)


class Stage:
    def __init__(self) -> None:
        self.bench = Bench(workers=1)
        (local,) = self.bench.registry.all()
        self.bench.registry.described(local, (ServedModel("m"),), Description())
        adapters = Adapters({"sql": Adapter(path="/sql", base="m")}, self.bench.core)
        self.loader, self.tokenizing = Loader(self.bench), Tokenizing()
        self.gate = AdapterGate(adapters, self.loader, self.bench.core, self.tokenizing)
        self.done: list[ParsedRequest] = []

    def parsed(self, model: str) -> ParsedRequest:
        parsed = self.bench.gateway.reader.parse(Endpoint.CHAT, orjson.dumps(chat(model="m")), ANONYMOUS)
        return msgspec.structs.replace(parsed, model=model)

    def begin(self, model: str) -> ParsedRequest | None:
        return self.gate.begin(self.parsed(model), b"", self.done.append)


def use_of(parsed: ParsedRequest) -> AdapterUse:
    assert isinstance(parsed.choice, Choice)
    assert parsed.choice.adapter is not None
    return parsed.choice.adapter


async def test_other_models_pass_through_the_tokenizer() -> None:
    stage = Stage()
    found = stage.begin("m")
    assert found is not None
    assert found.choice is None
    assert (stage.tokenizing.begun, stage.loader.firsts) == (["m"], 0)
    stage.gate.answered(found, 7)
    assert stage.tokenizing.told == [7]


async def test_requests_wait_for_one_load_and_then_go_on() -> None:
    stage = Stage()
    assert [stage.begin("sql") for _ in range(3)] == [None] * 3
    stage.loader.opens.set()
    await until(lambda: len(stage.done) == 3)
    assert stage.loader.firsts == 1
    assert stage.tokenizing.begun == ["sql"] * 3
    assert {each.choice.told()["adapter"] for each in stage.done if each.choice is not None} == {"sql"}
    assert {use_of(each).reason for each in stage.done} == {""}
    assert stage.begin("sql") is not None


async def test_a_load_that_failed_is_the_answer() -> None:
    stage = Stage()
    stage.loader.reason = "no such path"
    stage.loader.opens.set()
    stage.begin("sql")
    await until(lambda: bool(stage.done))
    (failed,) = stage.done
    assert failed.choice is not None
    error = failed.choice.missing()
    assert error is not None
    assert (error.status, "no such path" in error.message) == (503, True)


async def test_few_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gating, "HELD_MAX", 1)
    stage = Stage()
    stage.begin("sql")
    with pytest.raises(NoWorker, match="Too many requests wait"):
        stage.begin("sql")
    stage.loader.opens.set()
    await until(lambda: bool(stage.done))


async def test_an_explanation_loads_nothing() -> None:
    stage = Stage()
    found = await stage.gate.now(stage.parsed("sql"), b"")
    assert found.choice is not None
    error = found.choice.missing()
    assert error is not None
    assert "a request has it loaded at" in error.message
    assert stage.loader.firsts == 0


async def test_a_request_waits_for_what_siblings_unload() -> None:
    stage = Stage()
    stage.loader.opens.set()
    opens = asyncio.Event()

    async def read() -> None:
        await opens.wait()

    stage.loader.reading = asyncio.create_task(read())
    assert stage.begin("sql") is None
    assert (stage.done, stage.loader.firsts) == ([], 0)
    stage.loader.reading = None
    opens.set()
    await until(lambda: stage.done)
    assert stage.loader.firsts == 1
    use = use_of(stage.done[0]).use
    assert use is not None
    assert use.in_flight


async def test_an_adapter_that_is_gone_when_its_load_has_ended_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one took its place, time and again."""
    stage = Stage()
    stage.loader.opens.set()
    stage.loader.forgets = 2
    assert stage.begin("sql") is None
    await until(lambda: stage.done)
    assert stage.loader.firsts == 3
    assert use_of(stage.done[0]).reason == ""

    monkeypatch.setattr(gating, "LOADS_MAX", 2)
    stage = Stage()
    stage.loader.opens.set()
    stage.loader.forgets = 9
    assert stage.begin("sql") is None
    await until(lambda: stage.done)
    assert stage.loader.firsts == 2
    assert "too many adapters" in use_of(stage.done[0]).reason


async def test_a_request_ends_with_the_process() -> None:
    stage = Stage()
    stage.loader.reading = asyncio.create_task(asyncio.sleep(60))
    assert stage.begin("sql") is None
    stage.loader.reading.cancel()
    await until(lambda: stage.done)
    assert (use_of(stage.done[0]).reason, stage.loader.firsts) == ("The gateway shuts down.", 0)
