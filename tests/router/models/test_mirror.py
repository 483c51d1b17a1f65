"""Copies of requests: bounded, without keys of clients, and nothing waits for them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import orjson
import pytest
from fakes.gateway import Bench, chat
from fakes.running import until

from router.gateway.endpoints import Endpoint
from router.model_rules import ModelRules
from router.models import mirror as mirroring
from router.models.mirror import Mirror
from router.settings import Settings
from router.tenant import ANONYMOUS

Answers = Callable[[httpx.Request], httpx.Response]


def streamed(status: int) -> httpx.Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"thrown "
        yield b"away"

    return httpx.Response(status, content=pieces())


class Stage:
    def __init__(self, answers: Answers, **rules: object) -> None:
        self.bench = Bench()
        self.asked: list[httpx.Request] = []
        self.mirror = Mirror(self.rules(**rules), self.bench.metrics)

        def answer(request: httpx.Request) -> httpx.Response:
            self.asked.append(request)
            return answers(request)

        self.mirror._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))

    @staticmethod
    def rules(**rules: object) -> ModelRules:
        models = {"mirror_url": "http://second:1", "mirror_ratio": 1.0, **rules}
        return Settings.model_validate({"models": models}).models

    def begin(self, text: str = "x") -> bytes:
        body = orjson.dumps(chat(text))
        parsed = self.bench.gateway.reader.parse(Endpoint.CHAT, body, ANONYMOUS)
        assert self.mirror.begin(parsed, body, lambda _: None) is parsed
        return body

    def counted(self, outcome: str) -> bool:
        line = f'cacheway_mirrored_requests_total{{outcome="{outcome}"}} 1.0'
        return line.encode() in self.bench.metrics.exposition()[0]


async def test_a_copy_has_the_body_alone() -> None:
    stage = Stage(lambda _: streamed(200))
    body = stage.begin()
    await until(lambda: stage.counted("answered"))
    (asked,) = stage.asked
    assert (str(asked.url), asked.content) == ("http://second:1/v1/chat/completions", body)
    assert "authorization" not in asked.headers
    await stage.mirror.close()


async def test_a_copy_may_have_another_model_and_a_key_of_its_own() -> None:
    stage = Stage(lambda _: streamed(200), mirror_model="v2", mirror_key="secret")
    stage.begin()
    await until(lambda: stage.counted("answered"))
    (asked,) = stage.asked
    assert json.loads(asked.content)["model"] == "v2"
    assert asked.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(("status", "outcome"), [(500, "refused"), (0, "failed"), (-1, "late")])
async def test_failures_are_counted(status: int, outcome: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if status > 0:
            return streamed(status)
        if status < 0:
            raise TimeoutError
        raise httpx.ConnectError("refused", request=request)

    stage = Stage(answer)
    stage.begin()
    await until(lambda: stage.counted(outcome))


async def test_copies_are_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(lambda _: streamed(200), mirror_inflight_max=1)
    stage.begin()
    stage.begin()
    assert stage.counted("too_many")
    await until(lambda: stage.counted("answered"))
    await asyncio.sleep(0)
    monkeypatch.setattr(mirroring, "BODY_BYTES_MAX", 10)
    stage.begin()
    assert stage.counted("too_large")


async def test_none_is_drawn_at_a_ratio_of_nothing() -> None:
    stage = Stage(lambda _: streamed(200), mirror_ratio=0)
    assert not stage.mirror.is_on
    stage.begin()
    assert stage.asked == []
