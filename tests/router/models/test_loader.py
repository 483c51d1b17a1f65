"""Loads at engines: once for all, one at a time at a worker, told if they fail."""

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest
from fakes.gateway import Bench

from router.engines import Description
from router.fleet import ServedModel
from router.metric_families import ADAPTER_LOADS
from router.model_rules import Adapter
from router.models import loader as loading
from router.models.adapters import Adapters, holds
from router.models.loader import AdapterLoader
from router.shared import AdapterUses

Answers = Callable[[httpx.Request], httpx.Response]


class Stage:
    def __init__(self, answers: Answers, engine: str = "vllm") -> None:
        self.bench = Bench(workers=1)
        (self.local,) = self.bench.registry.all()
        self.bench.registry.described(self.local, (ServedModel("mimo"),), Description(engine=engine))
        rules = {name: Adapter(path=f"/{name}", base="mimo") for name in ("a", "b", "c")}
        self.adapters = Adapters(rules, self.bench.core)
        self.asked: list[tuple[str, dict[str, str]]] = []

        def answer(request: httpx.Request) -> httpx.Response:
            self.asked.append((request.url.path, json.loads(request.content)))
            return answers(request)

        client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        self.loader = AdapterLoader(self.bench.core, client, self.bench.metrics)

    async def load(self, name: str) -> str:
        return await self.loader.first(self.adapters, name)


def well(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, text="Success: LoRA adapter added successfully.")


async def test_many_wait_for_one_load() -> None:
    stage = Stage(well)
    assert await asyncio.gather(*(stage.load("a") for _ in range(5))) == [""] * 5
    assert stage.asked == [("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/a"})]
    assert holds(stage.local, "a")
    assert stage.loader.spread(stage.adapters, "a") == []


async def test_the_one_used_longest_ago_makes_room() -> None:
    stage = Stage(well, "sglang")
    await stage.load("a")
    await stage.load("b")
    assert [path for path, _ in stage.asked] == [
        "/load_lora_adapter",
        "/unload_lora_adapter",
        "/load_lora_adapter",
    ]
    assert (holds(stage.local, "a"), holds(stage.local, "b")) == (False, True)


async def test_an_adapter_that_is_being_unloaded_gets_no_requests_whatever_checks_find() -> None:
    stage = Stage(well)
    await stage.load("a")
    place, listed = (stage.local.worker.worker_id, "a"), stage.local.models
    stage.loader.uses.leaves(place)
    stage.loader.follow()
    assert not holds(stage.local, "a")
    stage.bench.registry.described(stage.local, listed, Description())
    assert not holds(stage.local, "a")
    assert await stage.load("a") == ""
    assert holds(stage.local, "a")


async def test_an_adapter_that_a_sibling_unloads_is_loaded_when_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its engine has it until then, and would answer 404 afterwards."""
    monkeypatch.setattr(loading, "LEAVING_POLL_S", 0.0)
    asks: list[bool] = [True, True, False]

    async def is_leaving(_: AdapterUses, place: tuple[str, str]) -> bool:
        assert place == ("w0:80", "a")
        return leaves

    def loaded(request: httpx.Request) -> httpx.Response:
        text = "The lora adapter 'a' has already been loaded."
        return httpx.Response(400, text=text) if asks.pop(0) else well(request)

    monkeypatch.setattr(AdapterUses, "is_leaving", is_leaving)
    leaves = True
    stage = Stage(loaded)
    assert (await stage.load("a"), len(stage.asked), holds(stage.local, "a")) == ("", 3, True)
    leaves, asks[:] = False, [True]
    stage = Stage(loaded)
    assert (await stage.load("a"), len(stage.asked), holds(stage.local, "a")) == ("", 1, True)
    leaves, asks[:] = True, [True] * 99
    stage = Stage(loaded)
    assert (await stage.load("a"), len(stage.asked)) == ("", 1 + loading.LEAVING_POLLS)


async def test_an_adapter_that_was_not_unloaded_gets_requests_again() -> None:
    def stays(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, text="no") if "unload" in request.url.path else well(request)

    stage = Stage(stays)
    await stage.load("a")
    listed = stage.local.models
    await stage.load("b")
    stage.bench.registry.described(stage.local, listed, Description())
    assert holds(stage.local, "a")


async def test_an_unload_of_what_is_gone_is_done() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        text = "The lora adapter 'a' cannot be found."
        return httpx.Response(404, text=text) if "unload" in request.url.path else well(request)

    stage = Stage(gone)
    assert [await stage.load(name) for name in "ab"] == ["", ""]
    assert stage.bench.metrics.counts[ADAPTER_LOADS].events == [("loaded",), ("unloaded",), ("loaded",)]


async def test_an_adapter_with_requests_in_flight_goes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ARRIVAL_S", 0.02)
    stage = Stage(well)
    stage.loader.per_worker_max = 2
    await stage.load("a")
    await stage.load("b")
    use = stage.loader.uses.begun("a")
    use.in_flight = True
    stage.loader.uses.begun("b")
    await stage.load("c")
    assert [holds(stage.local, name) for name in "abc"] == [True, False, True]
    stage.loader.per_worker_max = 1
    stage.loader.uses.begun("c").in_flight = True
    await stage.load("b")
    assert holds(stage.local, "b")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.Response(404, text="Loading lora a failed: No adapter found for /a"), "No adapter found"),
        (httpx.Response(500, text="out of memory"), "HTTP 500: out of memory"),
        (httpx.Response(200, json={"success": False, "error_message": "no rank"}), "no rank"),
        (httpx.Response(404), "it has no such path"),
        (httpx.Response(400, text="x" * 10_000), "HTTP 400: xxx"),
    ],
)
async def test_a_failure_is_told_and_not_repeated_at_once(answer: httpx.Response, reason: str) -> None:
    stage = Stage(lambda _: answer)
    told = await stage.load("a")
    assert told.startswith(stage.local.worker.worker_id)
    assert reason in told
    assert len(told) < 400
    assert await stage.load("a") == told
    assert len(stage.asked) == 1
    assert not holds(stage.local, "a")


async def test_an_adapter_that_another_replica_loaded_is_there() -> None:
    stage = Stage(lambda _: httpx.Response(400, text="The lora adapter a has already been loaded."))
    assert await stage.load("a") == ""
    assert holds(stage.local, "a")


async def test_an_engine_that_nobody_knows_is_asked_both_ways() -> None:
    stage = Stage(lambda request: httpx.Response(404 if request.url.path.startswith("/v1") else 200), "")
    assert await stage.load("a") == ""


async def test_a_worker_that_cannot_be_reached_or_is_silent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    assert "ConnectError" in await Stage(refuse).load("a")

    def late(_: httpx.Request) -> httpx.Response:
        raise TimeoutError

    assert "no answer within" in await Stage(late).load("a")
    assert loading.TIMEOUT_S > 0


async def test_without_a_worker_of_its_base_nothing_is_asked() -> None:
    stage = Stage(well)
    stage.bench.registry.described(stage.local, (ServedModel("other"),), Description())
    assert await stage.load("a") == "no healthy worker serves mimo"
    assert stage.asked == []


async def test_loads_end_with_the_process() -> None:
    stage = Stage(well)
    loads = stage.loader.spread(stage.adapters, "a")
    await stage.loader.close()
    assert [load.cancelled() for load in loads] == [True]
