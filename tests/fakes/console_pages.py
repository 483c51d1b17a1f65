"""Answers of the admin API for the console's further pages; every name in them is the test's."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse


class PageAnswers:
    """Answers, and the questions and changes that came.

    Attributes:
        name: Stands for every name that comes from outside.
        asked: Bodies of ``POST /explain``.
        tenants: True if there is a keys file.
    """

    def __init__(self, name: str = "agent") -> None:
        self.name = name
        self.asked: list[Any] = []
        self.changed: list[Any] = []
        self.tenants = False

    def add(self, api: FastAPI) -> None:
        """Serve them."""
        answers = self

        @api.get("/decisions")
        async def decisions() -> dict[str, Any]:
            return {"decisions": [answers.past()]}

        @api.post("/explain")
        async def explain(request: Request) -> dict[str, Any]:
            answers.asked.append(await request.json())
            return answers.explained(past="request_id" in answers.asked[-1])

        @api.get("/tree")
        async def tree() -> dict[str, Any]:
            start = {"prefix": "91f3", "model": answers.name, "requests": 7, "saved_tokens": 9000}
            start |= {"saved_ratio": 0.7, "tokens": 512, "branches": 3}
            start |= {"holders": [answers.name], "holders_count": 1}
            savings = {"since_unix_s": 1.0, "saved_tokens": 9000, "requests": 9}
            return {"tokens": 9, "blocks": 2, "blocks_max": 8, "copies_mean": 1.2, "savings": savings} | {
                "prefixes": [start]
            }

        @api.get("/tree/workers")
        async def workers() -> dict[str, Any]:
            held = {"worker": answers.name, "role": "plain", "held_tokens": 512}
            return {"workers": [held | {"full_ratio": 0.5, "tree_ratio": 0.1}], "omitted": 2}

        @api.get("/settings")
        async def settings() -> dict[str, Any]:
            return {"revision": "r1", "note": None, "settings": answers.settings()}

        @api.get("/settings/history")
        async def history() -> dict[str, Any]:
            change = {"change_id": "c1", "at_unix_s": 1.0, "replica": "gateway-1", "actor": answers.name}
            values = {"queue.size": {"before": None, "after": 5}}
            return {"changes": [{**change, "comment": answers.name, "values": values}]}

        @api.post("/settings/rollback")
        async def rollback(request: Request) -> JSONResponse:
            answers.changed.append(await request.json())
            return JSONResponse({})

        @api.get("/audit")
        async def audit() -> dict[str, Any]:
            change = {"at_unix_s": 1.0, "replica": "gateway-1", "client": "10.0.0.9:5", "status": 202}
            change |= {"actor": answers.name, "action": "POST /workers", "target": answers.name}
            return {"changes": [change | {"detail": {"url": answers.name}}], "total": 1}

        @api.get("/tenants")
        async def tenants() -> dict[str, Any]:
            if not answers.tenants:
                return {"file": None, "tenants": [], "total": 0}
            limits = {"requests_per_minute": None, "tokens_per_minute": 90_000}
            tenant = {"name": answers.name, "class": answers.name, "weight": 2, "isolated": True}
            tenant |= {"limits": limits, "cache": None, "keys": {"valid": 1, "expired": 1}}
            return {"file": {"problem": None}, "limits_degraded": None, "tenants": [tenant], "total": 1}

    def past(self) -> dict[str, Any]:
        return {
            "request_id": self.name,
            "ended_unix_s": 1.0,
            "outcome": "completed",
            "worker": self.name,
            "why": f"{self.name} was chosen",
            "prompt_tokens": 7376,
            "predicted_cached_tokens": 7230,
            "reported_cached_tokens": 7230,
            "ttft_since_arrival_s": 0.013,
            "detail": None,
        }

    def explained(self, *, past: bool) -> dict[str, Any]:
        candidate = {"worker": self.name, "chosen": True, "cost": 0.1, "safe_tokens": 7230}
        candidate |= {"uncached_tokens": 146, "queue_s": 0.0, "prefill_s": 0.01, "ttft_s": 0.02}
        return {
            "decision": {"outcome": "place", "worker": self.name, "why": f"{self.name} is the cheapest"},
            "policy": {"name": "expected_cost", "unit": "seconds"},
            "request": {"prompt_tokens": 7376, "model": self.name},
            "candidates": [candidate, *({**candidate, "chosen": False, "cost": 1.0 + n} for n in range(29))],
            "not_candidates": [{"worker": self.name, "reason": "draining", "detail": self.name}],
            "past": self.past() if past else None,
            "compared": {"note": "Only the first 256 tokens are compared" if past else None},
        }

    def settings(self) -> dict[str, Any]:
        size = {"value": 5, "default": 100, "source": "runtime", "place": "", "live": True}
        size |= {"refused": None, "allowed": "a whole number", "choices": [], "description": self.name}
        port = {**size, "value": 30000, "source": "default", "live": False}
        return {"queue.size": size, "server.port": port}
