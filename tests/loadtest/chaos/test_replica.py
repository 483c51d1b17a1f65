"""Comparisons of replicas; a difference is found."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from loadtest.chaos import Decision, Replica, disagreements, settled


class Answers:
    """Answers of one replica."""

    def __init__(self) -> None:
        self.status = 200
        self.degraded: str | None = None
        self.load = 0
        self.held = 512
        self.cached = 256

    def __call__(self, request: httpx.Request) -> httpx.Response:
        bodies: dict[str, Any] = {
            "/readiness": {"shared": {"degraded": self.degraded, "warm": True}},
            "/get_loads": {"loads": [{"worker": "w", "load": self.load}]},
            "/workers": {"workers": [{"id": "w", "held_tokens": self.held}]},
        }
        if request.url.path == "/metrics":
            return httpx.Response(200, text='# HELP\ncacheway_log_buffered_ops 0.0\nother{a="b"} 2.5\n')
        if request.url.path == "/v1/chat/completions":
            assert json.loads(request.content)["messages"][0]["content"] == "prompt"
            headers = {"x-cacheway-worker": "w", "x-cacheway-cached-tokens": str(self.cached)}
            return httpx.Response(200, headers=headers)
        return httpx.Response(self.status, json=bodies[request.url.path])


@pytest.fixture
def both() -> tuple[Answers, Answers]:
    return Answers(), Answers()


def replicas(answers: tuple[Answers, Answers]) -> list[Replica]:
    return [
        Replica(httpx.AsyncClient(base_url="http://replica", transport=httpx.MockTransport(one)))
        for one in answers
    ]


@contextmanager
def differing(one: Answers, name: str, value: object) -> Iterator[None]:
    before = getattr(one, name)
    setattr(one, name, value)
    yield
    setattr(one, name, before)


async def test_replicas_have_settled_when_they_see_the_same_and_nothing_goes_on(
    both: tuple[Answers, Answers],
) -> None:
    seen = replicas(both)
    await settled(seen, within_s=60)
    for name, value in (("degraded", "away"), ("load", 1), ("held", 256)):
        with differing(both[1], name, value), pytest.raises(TimeoutError, match=str(value)):
            await settled(seen, within_s=0.2)
    for one in both:
        one.load = 1
    with pytest.raises(TimeoutError):
        await settled(seen, within_s=0.2)


async def test_a_decision_that_differs_is_named(both: tuple[Answers, Answers]) -> None:
    seen = replicas(both)
    assert await seen[0].decide("prompt") == Decision("w", 256)
    assert await disagreements(seen, ["prompt"]) == []
    both[1].cached = 0
    (line,) = await disagreements(seen, ["prompt"])
    assert "prompt" in line


async def test_a_replica_that_is_not_ready_is_no_replica_to_compare(both: tuple[Answers, Answers]) -> None:
    (replica, _) = replicas(both)
    assert (await replica.shared())["warm"]
    await replica.warmed()
    assert await replica.metric('other{a="b"}') == 2.5
    with pytest.raises(KeyError):
        await replica.metric("other")
    both[0].status = 503
    with pytest.raises(AssertionError):
        await replica.shared()
