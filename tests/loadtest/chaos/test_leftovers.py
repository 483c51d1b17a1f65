"""Leftovers are reported by name, and waited for."""

from typing import Any

import httpx
import pytest

from loadtest.chaos import Replica
from loadtest.chaos.leftovers import leftovers
from loadtest.engine import EmulatedEngine, EngineSettings


def replica(**worker: float) -> Replica:
    clean = {"inflight_requests": 0, "inflight_tokens": 0, "backlog_s": 0.0}
    bodies: dict[str, Any] = {
        "/workers": {"workers": [clean | worker]},
        "/queue": {"waiting": {"requests": 0, "uncached_tokens": 0}},
    }

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text="cacheway_inflight_requests 0.0\n")
        return httpx.Response(200, json=bodies[request.url.path])

    return Replica(httpx.AsyncClient(base_url="http://r1", transport=httpx.MockTransport(answer)))


async def test_nothing_is_left_of_an_idle_fleet() -> None:
    async with EmulatedEngine(EngineSettings()) as engine:
        assert await leftovers([replica()], [engine.url]) == []


async def test_what_stays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with EmulatedEngine(EngineSettings()) as engine:
        monkeypatch.setattr(engine, "stats", lambda: {"running": 2, "under_way": 1, "handover": {"rooms": 3}})
        left = await leftovers([replica(backlog_s=1.5)], [engine.url], within_s=0.1)

    assert left == [
        "http://r1: backlog_s 1.5",
        f"{engine.url}: running 2",
        f"{engine.url}: under_way 1",
        f"{engine.url}: rooms 3",
    ]
