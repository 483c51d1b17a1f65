"""What engines answer when they are to take another role."""

import json

import httpx
import pytest

from policies import Switched
from router.fleet.role_switch import switch_role


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
