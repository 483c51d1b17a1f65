"""What engines answer when they are to take another role."""

import json

import httpx
import pytest

from policies import Switched
from router.fleet.role_switch import role_of, switch_role


class Engine:
    """Answers every request alike, or not at all."""

    def __init__(self, status: int = 200, answer: object = None) -> None:
        self.status, self.answer = status, answer
        self.asked: list[tuple[str, str, object]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, str(request.url), json.loads(request.content)))
        if not self.status:
            raise httpx.ConnectError("refused")
        if isinstance(self.answer, str):
            return httpx.Response(self.status, text=self.answer)
        return httpx.Response(self.status, json=self.answer)

    async def asks(self, engine: str = "sglang") -> Switched:
        async with httpx.AsyncClient(transport=httpx.MockTransport(self.handle)) as client:
            return await switch_role(client, "http://w:30000", engine, "decode")


async def test_sglang_is_asked_and_has_lost_its_cache_then() -> None:
    engine = Engine(200, {"success": True, "message": "ok", "old_role": "prefill", "new_role": "decode"})
    assert await engine.asks() is Switched.EMPTIED
    assert engine.asked == [("POST", "http://w:30000/pd_role_switch", {"new_role": "decode"})]


@pytest.mark.parametrize("name", ["vllm", ""])
async def test_others_are_not_asked_and_keep_their_cache(name: str) -> None:
    engine = Engine(404)
    assert await engine.asks(name) is Switched.DONE
    assert engine.asked == []


@pytest.mark.parametrize(
    ("status", "answer", "outcome"),
    [
        (400, {"success": False, "message": "instance is not idle", "safe_to_restore": True}, Switched.LATER),
        (400, {"success": False, "message": "a switch is in progress"}, Switched.LATER),
        (400, {"success": False, "message": "started without --enable-pd-role-switch"}, Switched.REFUSED),
        (400, {"success": False, "message": "instance unhealthy, restart required"}, Switched.BROKEN),
        (400, {"success": False, "message": "no", "safe_to_restore": False}, Switched.BROKEN),
        (400, {"success": True}, Switched.REFUSED),
        (404, {"detail": "Not Found"}, Switched.REFUSED),
        (200, "OK", Switched.REFUSED),
        (200, ["odd"], Switched.REFUSED),
        (404, "", Switched.REFUSED),
        (503, {"message": 7}, Switched.LATER),
        (0, None, Switched.LATER),
    ],
)
async def test_what_else_an_engine_may_say(status: int, answer: object, outcome: Switched) -> None:
    assert await Engine(status, answer).asks() is outcome


NEEDS_GRAPHS = {
    "success": False,
    "message": "decode_cuda_graph_memory_gb is required",
    "safe_to_restore": True,
}


class Pair:
    """An engine that wants to know about CUDA graphs, and others that decode already."""

    def __init__(self, *infos: object) -> None:
        self.infos = {f"peer{number}": info for number, info in enumerate(infos)}
        self.bodies: list[dict[str, object]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/get_server_info":
            return httpx.Response(200, json=self.infos[request.url.host])
        self.bodies.append(json.loads(request.content))
        if "decode_cuda_graph_memory_gb" not in self.bodies[-1]:
            return httpx.Response(400, json=NEEDS_GRAPHS)
        return httpx.Response(200, json={"success": True})

    async def asks(self) -> Switched:
        peers = [f"http://{name}" for name in self.infos]
        async with httpx.AsyncClient(transport=httpx.MockTransport(self.handle)) as client:
            return await switch_role(client, "http://w", "sglang", "decode", peers)


async def test_an_engine_that_needs_to_know_of_graphs_is_told_what_others_have() -> None:
    states = [
        {"decode_cuda_graph_memory_gb": 1.5, "decode_cuda_graph_bs": [1, 2, 4]},
        {"decode_cuda_graph_memory_gb": 2.0, "decode_cuda_graph_bs": [1, 2, 4]},
    ]
    pair = Pair({"internal_states": [{}, 3]}, {"internal_states": states})
    assert await pair.asks() is Switched.EMPTIED
    told = {"decode_cuda_graph_memory_gb": 2.0, "decode_cuda_graph_bs": [1, 2, 4]}
    assert pair.bodies == [{"new_role": "decode"}, {"new_role": "decode", **told}]
    bare = Pair({"internal_states": [{"decode_cuda_graph_memory_gb": 1.0}]})
    assert await bare.asks() is Switched.EMPTIED
    assert bare.bodies[-1] == {"new_role": "decode", "decode_cuda_graph_memory_gb": 1.0}


async def test_where_nobody_knows_of_graphs_the_engine_stays_what_it_is() -> None:
    for infos in ((), ([],), ({"internal_states": "?"},), ({"internal_states": [{}]},)):
        pair = Pair(*infos)
        assert await pair.asks() is Switched.REFUSED
        assert pair.bodies == [{"new_role": "decode"}]


@pytest.mark.parametrize(
    ("info", "role"),
    [
        (
            {"disaggregation_mode": "prefill", "internal_states": [{"disaggregation_mode": "decode"}]},
            "decode",
        ),
        ({"disaggregation_mode": "prefill", "internal_states": [{}]}, "prefill"),
        ({"disaggregation_mode": "null"}, ""),
        ({}, ""),
        (["odd"], ""),
    ],
)
async def test_the_role_of_an_engine_is_what_its_scheduler_says(info: object, role: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=info))
    async with httpx.AsyncClient(transport=transport) as client:
        assert await role_of(client, "http://w", "sglang") == role
    transport = httpx.MockTransport(lambda _: httpx.Response(404))
    async with httpx.AsyncClient(transport=transport) as client:
        assert await role_of(client, "http://w", "sglang") == ""
        assert await role_of(client, "http://w", "vllm") == ""
