"""The console's page before a made-up fleet, on a real socket, with the part of the API that it uses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fakes.console import MadeUpFleet
from fakes.console_pages import PageAnswers
from fakes.running import until
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from loadtest.processes import free_port
from router.admin.console import add_console
from router.console import EventStream, RateWindow
from router.errors import RouterError, error_body

POLICIES = [
    {
        "name": "expected_cost",
        "picks": "Lowest cost for this request and those behind it.",
        "uses_cache": True,
    },
    {"name": "round_robin", "picks": "One after the other.", "uses_cache": False},
]


@dataclass
class ConsoleApp:
    """A page that can be visited.

    Attributes:
        fleet: The fleet that it shows.
        url: Address of the page.
        token: Token that the API requires; empty for none.
        changes: Changes made through the API.
        refuse: Status and message of the refusal of the next change.
        stream: Stream of events.
        rates: The figures; looked at once before the page is served.
    """

    fleet: MadeUpFleet
    url: str = ""
    token: str = ""
    changes: list[tuple[str, str, Any]] = field(default_factory=list)
    refuse: tuple[int, str] | None = None
    ending: bool = False
    pages: PageAnswers = field(default_factory=PageAnswers)

    def __post_init__(self) -> None:
        self.now_unix_s = 1_767_225_600.0
        self.rates = RateWindow(self.fleet, now_unix_s=lambda: self.now_unix_s)
        self.stream = EventStream(
            self.fleet, self.rates, lambda: self.ending, 0.2, now_unix_s=lambda: self.now_unix_s
        )
        self.api = FastAPI()
        self.api.add_exception_handler(RouterError, _shaped)
        self._key()
        add_console(self.api, self.stream)
        self._workers()
        self._settings()
        self.pages.add(self.api)

    async def lived(self, samples: int) -> None:
        """Let time pass, five seconds for each sample."""
        for _ in range(samples):
            await self.rates.look()
            self.now_unix_s += 5.0

    def _key(self) -> None:
        @self.api.middleware("http")
        async def check(request: Request, call_next: Any) -> Response:
            path = request.url.path
            free = not self.token or path == "/" or path.startswith("/console")
            if free or request.headers.get("authorization") == f"Bearer {self.token}":
                response: Response = await call_next(request)
                return response
            return JSONResponse({"error": {"message": "A token is needed."}}, 401)

    def _change(self, what: str, target: str, detail: Any = None) -> JSONResponse:
        if self.refuse is not None:
            (status, message), self.refuse = self.refuse, None
            return JSONResponse({"error": {"message": message}}, status)
        self.changes.append((what, target, detail))
        return JSONResponse({"status": "accepted"}, 202)

    def _number(self, worker_id: str) -> int:
        return next(n for n, each in enumerate(self.fleet.workers) if each.id == worker_id)

    def _workers(self) -> None:
        @self.api.post("/workers/{worker_id:path}/drain")
        async def drain(worker_id: str) -> JSONResponse:
            answer = self._change("drain", worker_id)
            if answer.status_code == 202:
                self.fleet.change(self._number(worker_id), state="draining")
            return answer

        @self.api.post("/workers/{worker_id:path}/undrain")
        async def undrain(worker_id: str) -> JSONResponse:
            self.fleet.change(self._number(worker_id), state="healthy")
            return self._change("undrain", worker_id)

        @self.api.get("/workers/{worker_id:path}/drain")
        async def progress(worker_id: str) -> dict[str, Any]:
            return {"inflight_requests": 3, "waiting_for_it": 0, "expected_s": 42.0}

        @self.api.get("/workers/{worker_id:path}")
        async def one(worker_id: str) -> dict[str, Any]:
            each = self.fleet.workers[self._number(worker_id)]
            return {
                "id": each.id,
                "url": f"http://{each.id}",
                "state": each.state,
                "detail": "HTTP 200",
                "labels": {"worker_class": "h200"},
                "inflight_tokens": 12_345,
                "held_tokens": 900_000,
                "share": 1.0,
                "connections": {"open": 3, "idle": 1},
            }

    def _settings(self) -> None:
        @self.api.get("/policies")
        async def policies() -> dict[str, Any]:
            active = {"placement": {"policy": self.fleet.policy, "options": {}}}
            return {"active": active, "policies": POLICIES}

        @self.api.patch("/settings")
        async def settings(request: Request) -> JSONResponse:
            said = await request.json()
            answer = self._change("settings", "placement.policy", said)
            if answer.status_code == 202:
                self.fleet.policy = said["values"].get("placement.policy", self.fleet.policy)
            return answer


async def _shaped(_: Request, error: Exception) -> Response:
    assert isinstance(error, RouterError)
    return Response(error_body(error), error.status, media_type="application/json")


@contextlib.asynccontextmanager
async def served(app: ConsoleApp) -> AsyncIterator[ConsoleApp]:
    """Serve it, and end its stream before the server."""
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(app.api, host="127.0.0.1", port=port, log_level="error", lifespan="off")
    )
    task = asyncio.create_task(server._serve(), name="console app")  # without its signal handlers
    await until(lambda: server.started or task.done())
    app.url = f"http://127.0.0.1:{port}"
    try:
        yield app
    finally:
        await app.stream.close()
        server.should_exit = True
        await task
