"""Routes that ask every worker."""

import asyncio
from typing import Any

import httpx
from fakes.admin import Setup, unreachable

from policies import Forget


async def test_a_flush_asks_every_worker_in_its_own_way_and_forgets_those_that_did(setup: Setup) -> None:
    setup.add("sglang", "vllm", "busy", "broken", "gone")

    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.host:
            case "vllm" | "busy" if request.url.path == "/flush_cache":
                return httpx.Response(404)
            case "vllm" | "busy":
                assert request.url.query == b"reset_external=true"
                return httpx.Response(200, json={"success": request.url.host == "vllm"})
            case "broken":
                return httpx.Response(500)
            case "gone":
                return unreachable(request)
        return httpx.Response(200)

    setup.answer = answer
    flushed = await setup.client.post("/flush_cache")
    assert flushed.status_code == 200
    assert flushed.json() == {
        "flushed": ["sglang:80", "vllm:80"],
        "failed": {"broken:80": "HTTP 500", "busy:80": "its blocks are in use", "gone:80": "ConnectError"},
    }
    assert [op.worker for op in setup.shared.said(Forget)] == ["sglang:80", "vllm:80"]
    assert "POST vllm/reset_prefix_cache" in setup.asked


async def test_a_slow_worker_does_not_keep_the_others_from_flushing(setup: Setup) -> None:
    setup.add("slow", "well")
    flushed = asyncio.Event()

    async def slow() -> httpx.Response:
        await flushed.wait()
        return httpx.Response(200)

    def answer(request: httpx.Request) -> Any:
        if request.url.host == "slow":
            return slow()
        flushed.set()
        return httpx.Response(200)

    setup.answer = answer
    assert (await setup.client.post("/flush_cache")).json()["flushed"] == ["slow:80", "well:80"]


async def test_a_flush_that_no_worker_did_is_an_error(setup: Setup) -> None:
    setup.add("a")
    setup.answer = unreachable
    assert (await setup.client.post("/flush_cache")).status_code == 502
    assert not setup.shared.said(Forget)


async def test_vllms_name_of_the_flush_does_the_same(setup: Setup) -> None:
    setup.add("a")
    setup.answer = lambda _: httpx.Response(200)
    assert (await setup.client.post("/reset_prefix_cache")).json() == {"flushed": ["a:80"], "failed": {}}


async def test_profilers_of_all_workers_start_and_stop_with_the_body_of_the_caller(setup: Setup) -> None:
    setup.add("a", "b")
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        return httpx.Response(200 if request.url.host == "a" else 500)

    setup.answer = answer
    started = await setup.client.post("/start_profile", json={"num_steps": 3})
    assert started.json() == {"done": ["a:80"], "failed": {"b:80": "HTTP 500"}}
    assert bodies == [b'{"num_steps":3}'] * 2
    assert (await setup.client.post("/stop_profile")).status_code == 200
    assert "POST a/stop_profile" in setup.asked


async def test_metrics_of_all_workers_are_one_page(setup: Setup) -> None:
    setup.add("a", "b", "gone")

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "gone":
            return unreachable(request)
        text = "# HELP m What.\n# TYPE m gauge\n" + f'm{{x="1"}} {len(request.url.host)}\n'
        return httpx.Response(200, text=text)

    setup.answer = answer
    page = await setup.client.get("/engine_metrics")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain")
    lines = page.text.splitlines()
    assert lines[:2] == ["# HELP m What.", "# TYPE m gauge"]
    assert sorted(lines[2:]) == [
        'm{worker_addr="http://a:80",x="1"} 1',
        'm{worker_addr="http://b:80",x="1"} 1',
    ]
