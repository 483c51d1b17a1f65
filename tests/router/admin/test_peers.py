"""The older routers' dialect of the admin API."""

import asyncio
from typing import Any

import httpx
from fakes.admin import Setup, code, unreachable

from policies import Forget


async def shown(setup: Setup, worker_id: str) -> dict[str, Any]:
    answer = await setup.client.get(f"/workers/{worker_id}")
    return dict(answer.json())


async def test_the_older_routers_spelling_works(setup: Setup) -> None:
    assert (await setup.client.post("/add_worker", params={"url": "http://a"})).json()["worker_id"] == "a:80"
    assert (await setup.client.get("/list_workers")).json() == {"urls": ["http://a:80"]}
    assert (await setup.client.post("/remove_worker", params={"url": "http://a:80"})).status_code == 200
    again = await setup.client.post("/remove_worker", params={"url": "http://a:80"})
    assert (again.status_code, code(again)) == (404, "worker_not_found")
    assert (await setup.client.post("/add_worker")).status_code == 400


async def test_a_flush_asks_every_worker_in_its_own_way_and_forgets_those_that_did(setup: Setup) -> None:
    setup.add("sglang", "vllm", "broken", "gone")

    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.host:
            case "vllm" if request.url.path == "/flush_cache":
                return httpx.Response(404)
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
        "failed": {"broken:80": "HTTP 500", "gone:80": "ConnectError"},
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


async def test_the_older_spelling_names_roles_and_ports(setup: Setup) -> None:
    said = {"url": "http://a:1", "worker_type": "prefill", "bootstrap_port": 9000}
    assert (await setup.client.post("/add_worker", params=said)).json()["worker_id"] == "a:1"
    one = await shown(setup, "a:1")
    assert (one["role"], one["labels"]) == ("prefill", {"bootstrap_port": "9000"})
    wrong = await setup.client.post("/add_worker", params={"url": "http://b", "bootstrap_port": 70000})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "bootstrap_port")
