"""LoRA adapters of an emulated engine: loaded, bounded and unloaded as vLLM and SGLang do."""

import asyncio
from typing import Any

import httpx
import pytest
from fakes.running import until

from loadtest.engine import EmulatedEngine

DIALECTS = pytest.mark.parametrize("dialect", ["sglang", "vllm"])
HELLO = [{"role": "user", "content": "hello " * 200}]


class Engine:
    """An emulated engine in the words of its dialect."""

    def __init__(self, dialect: str, emulated: EmulatedEngine, client: httpx.AsyncClient) -> None:
        self.prefix = "/v1" if dialect == "vllm" else ""
        self.base = "" if dialect == "vllm" else "m:"
        self.emulated, self.client = emulated, client

    async def load(self, name: str, path: str = "/adapters/x") -> httpx.Response:
        body = {"lora_name": name, "lora_path": path}
        return await self.client.post(f"{self.prefix}/load_lora_adapter", json=body)

    async def unload(self, name: str) -> httpx.Response:
        return await self.client.post(f"{self.prefix}/unload_lora_adapter", json={"lora_name": name})

    async def ask(self, name: str, **more: Any) -> httpx.Response:
        body = {"model": self.base + name, "messages": HELLO, "max_tokens": 4} | more
        return await self.client.post("/v1/chat/completions", json=body)

    async def cached(self, name: str) -> int:
        usage = (await self.ask(name)).json()["usage"]
        return int((usage["prompt_tokens_details"] or {"cached_tokens": 0})["cached_tokens"])

    async def listed(self) -> list[str]:
        return [each["id"] for each in (await self.client.get("/v1/models")).json()["data"]]

    async def stats(self) -> Any:
        return (await self.client.get("/_stats")).json()["adapters"]


async def engine(start: Any, dialect: str, **settings: Any) -> Engine:
    more = {"models": ("m",), "enable_lora": True, "block_tokens": 16} | settings
    return Engine(dialect, *await start(dialect=dialect, **more))


@DIALECTS
async def test_an_adapter_is_loaded_served_and_unloaded(start: Any, dialect: str) -> None:
    one = await engine(start, dialect)
    assert (await one.ask("a")).status_code == (404 if dialect == "vllm" else 400)
    assert (await one.load("a", "/adapters/a")).status_code == 200
    entry = (await one.client.get("/v1/models")).json()["data"][1]
    assert (entry["id"], entry["parent"], entry["root"]) == ("a", "m", "/adapters/a")
    assert entry["max_model_len"] is None

    assert await one.cached("a") == 0
    assert await one.cached("a") > 0
    one.base, base = "", one.base
    assert await one.cached("m") == 0  # a cache of its own
    one.base = base
    assert (await one.unload("a")).status_code == 200
    assert await one.listed() == ["m"]
    assert await one.stats() == {"loaded": [], "loads": 1, "unloads": 1, "reloads": 0}


async def test_vllm_answers_as_its_source_says(start: Any) -> None:
    one = await engine(start, "vllm")
    assert (await one.load("a")).text == "Success: LoRA adapter 'a' added successfully."
    for answer, status, kind, words in (
        (await one.load("a"), 400, "InvalidUserInput", "has already been loaded"),
        (await one.load(""), 400, "InvalidUserInput", "must be provided"),
        (await one.load("b", "/missing/b"), 404, "NotFoundError", "No adapter found for /missing/b"),
        (await one.unload("b"), 404, "NotFoundError", "'b' cannot be found"),
        (await one.unload(""), 400, "InvalidUserInput", "needs to be provided"),
    ):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (status, status, kind)
        assert words in error["message"]
    assert (await one.unload("a")).text == "Success: LoRA adapter 'a' removed successfully."
    assert (await one.client.get("/v1/load_lora_adapter")).status_code == 405
    assert (await one.client.post("/load_lora_adapter")).status_code == 404


async def test_sglang_answers_as_its_source_says(start: Any) -> None:
    one = await engine(start, "sglang")
    loaded = (await one.load("a", "/a")).json()
    assert loaded == {"success": True, "error_message": None, "loaded_adapters": {"a": "/a"}}
    for answer, words in (
        (await one.load("a"), "is already loaded"),
        (await one.load("b", "/missing/b"), "/missing/b"),
        (await one.unload("b"), "does not exist"),
    ):
        said = answer.json()
        assert (answer.status_code, said["success"], said["loaded_adapters"]) == (400, False, {"a": "/a"})
        assert words in said["error_message"]
    assert (await one.client.post("/v1/load_lora_adapter")).status_code == 404
    native = {"text": "x" * 400, "lora_path": "a"}
    assert (await one.client.post("/generate", json=native)).status_code == 200
    assert (await one.client.post("/generate", json=native | {"lora_path": "b"})).status_code == 400
    one.base = ""
    assert (await one.ask("a")).status_code == 404  # it knows BASE:NAME


@DIALECTS
async def test_without_the_flag_nothing_is_loaded(start: Any, dialect: str) -> None:
    one = await engine(start, dialect, enable_lora=False, loras=("static",))
    answer = await one.load("a")
    assert answer.status_code == (404 if dialect == "vllm" else 400)
    assert dialect == "vllm" or "--enable-lora" in answer.json()["error_message"]
    assert (await one.ask("static")).status_code == 200


@DIALECTS
async def test_the_adapter_used_longest_ago_leaves_memory_and_comes_back(start: Any, dialect: str) -> None:
    """In vLLM it stays listed; SGLang unloads it, and loads it again for a request."""
    one = await engine(start, dialect, max_loaded_loras=2)
    for name in "ab":
        await one.load(name)
    await one.cached("a")
    await one.load("c")
    listed = ["m", "b", "a", "c"] if dialect == "vllm" else ["m", "a", "c"]
    assert await one.listed() == listed
    assert (await one.stats())["reloads"] == 0
    assert (await one.ask("b")).status_code == 200
    assert (await one.stats())["reloads"] == 1
    assert set(await one.listed()) == {"m", "b", "c"} | ({"a"} if dialect == "vllm" else set())


@DIALECTS
async def test_blocks_of_an_adapter_that_is_loaded_again(start: Any, dialect: str) -> None:
    one = await engine(start, dialect)
    await one.load("a")
    await one.cached("a")
    await one.unload("a")
    await one.load("a")
    assert (await one.cached("a") > 0) is (dialect == "vllm")


@DIALECTS
async def test_an_unload_beside_requests_lets_them_end(start: Any, dialect: str) -> None:
    one = await engine(start, dialect, tpot_ms=5.0)
    await one.load("a")
    asking = asyncio.create_task(one.ask("a", max_tokens=40, ignore_eos=True))
    await until(lambda: one.emulated.scheduler.running == 1)
    assert (await one.unload("a")).status_code == 200
    assert dialect == "vllm" or one.emulated.scheduler.running == 0
    assert (await asking).status_code == 200


@DIALECTS
async def test_two_loads_at_a_time_load_once(start: Any, dialect: str) -> None:
    one = await engine(start, dialect, lora_load_ms=20.0)
    statuses = [each.status_code for each in await asyncio.gather(one.load("a"), one.load("a"))]
    assert sorted(statuses) == [200, 400]
    assert (await one.stats())["loads"] == 1
