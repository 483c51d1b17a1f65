"""One emulated engine: cache, scheduler and API behind a listening socket.

    async with EmulatedEngine(EngineSettings(dialect="vllm")) as engine:
        ... engine.url ...

Several run in one process, each on its own port; model time passes on the clock of the event loop that opened
it. Three routes are for tests and demonstrations: ``POST`` and ``DELETE /_fault`` (`loadtest.engine.faults`)
and ``GET /_stats``; ``?port=`` addresses another engine of the process, which may refuse connections.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

import orjson

from loadtest.engine import infos
from loadtest.engine.adapters import Adapters
from loadtest.engine.build import build_shared_pool, build_worker
from loadtest.engine.errors import error_body
from loadtest.engine.faults import Fault, Faults
from loadtest.engine.handover import Handover, HandoverSettings
from loadtest.engine.handover.build import build_handover
from loadtest.engine.kv.l3 import L3Pool, L3Settings
from loadtest.engine.kv_feed import KvFeed
from loadtest.engine.metrics import Counters
from loadtest.engine.routes import Routes
from loadtest.engine.server import Answer, Connection, Request
from loadtest.engine.settings import EngineSettings

logger = logging.getLogger(__name__)

_BACKLOG = 1024


class EmulatedEngine:
    """An engine on a port of its own.

    Args:
        siblings: Engines of this process by port; it adds itself.
        pool: KV shared with them; by default one of its own if the settings ask for any.
    """

    def __init__(
        self,
        settings: EngineSettings,
        siblings: "MutableMapping[int, EmulatedEngine] | None" = None,
        pool: L3Pool | None = None,
    ) -> None:
        self.settings = settings
        self.faults = Faults()
        self.body_bytes_max = settings.body_bytes_max
        self.port = settings.port
        self.pool = shared_pool(settings) if pool is None else pool
        self.feed: KvFeed | None = None
        self.handover: Handover | None = None
        events = settings.kv_events
        self._kv_events = [] if events is None else [events.shifted(n) for n in range(settings.dp_ranks)]
        self._side_port = 0 if settings.handover is None else settings.handover.port
        self._switching: asyncio.Task[None] | None = None
        self._siblings = {} if siblings is None else siblings
        self._server: asyncio.Server | None = None
        self._opening: asyncio.Task[None] | None = None
        self._reopen: asyncio.TimerHandle | None = None
        self._connections: set[Connection] = set()
        self._deserted = asyncio.Event()
        self._journal = Path(settings.journal) if settings.journal else None

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://{self.settings.host}:{self.port}"

    @property
    def answering(self) -> bool:
        """True if a client waits for an answer."""
        return any(not connection.idle for connection in self._connections)

    async def start(self) -> None:
        """Listen; `OSError` if the port is taken."""
        self._boot()
        self.accept()
        assert self._opening is not None
        await self._opening

    def close(self) -> None:
        """Stop at once: no request gets an answer any more."""
        self._shut()
        self._end()
        for connection in list(self._connections):
            connection.reset()
        self._siblings.pop(self.port, None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close, and wait until the loop has dropped the connections."""
        self.close()
        if self._connections:
            await self._deserted.wait()

    def inject(self, fault: Fault) -> None:
        """Let a fault happen: now, or to the requests it is for."""
        if fault.kind in ("refuse", "crash"):
            self._shut()
            for connection in list(self._connections):
                if fault.kind == "crash" or connection.idle:
                    connection.reset()
            if fault.kind == "crash":
                self._end()
                self._boot()
            if fault.seconds:
                self._reopen = asyncio.get_running_loop().call_later(fault.seconds, self.accept)
        else:
            self.faults.add(fault)

    def mend(self) -> None:
        """End all faults."""
        self.faults.clear()
        self.accept()

    def accept(self) -> None:
        """Listen again, if the port is closed."""
        if self._reopen is not None:
            self._reopen.cancel()
            self._reopen = None
        if self._opening is not None:
            return
        family = socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET
        # Bound and listening when this returns; the loop takes the socket over a moment later.
        listener = socket.create_server((self.settings.host, self.port), family=family, backlog=_BACKLOG)
        self.port = listener.getsockname()[1]
        self._siblings[self.port] = self
        self._opening = asyncio.get_running_loop().create_task(self._serve(listener), name="engine.listen")

    async def _serve(self, listener: socket.socket) -> None:
        try:
            loop = asyncio.get_running_loop()
            if self.handover is not None:
                await self.handover.open(self.settings.host)
                self._side_port = self.handover.port
            self._server = await loop.create_server(lambda: Connection(self), sock=listener, backlog=_BACKLOG)
        except (asyncio.CancelledError, OSError):
            listener.close()
            raise

    def _shut(self) -> None:
        if self._reopen is not None:
            self._reopen.cancel()
            self._reopen = None
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def _boot(self) -> None:
        """An engine that has just begun: nothing is cached, nothing is counted."""
        self._started_unix_s = time.time()
        settings = self.settings
        profile = settings.engine()
        vllm = settings.dialect == "vllm"
        self.counters = Counters(self._started_unix_s)
        self.adapters = Adapters(settings, lambda: self.scheduler.jobs())
        self.feed = None
        if self._kv_events:
            self.feed = KvFeed(self._kv_events, profile, vllm=vllm, legacy=settings.kv_events_legacy)
            # Where the system chose ports, a life after a crash has the same.
            self._kv_events = self.feed.settings
        self._build(settings.handover)

    def _build(self, part: HandoverSettings | None) -> None:
        """Make scheduler, hand-over and routes of an engine with a part in disaggregation."""
        settings, profile = self.settings, self.settings.engine()
        # A SGLang engine that only decodes shares no prefixes, so it has nothing to tell of.
        silent = self.feed is None or (part is not None and part.shares_nothing)
        self.scheduler = build_worker(
            profile,
            asyncio.get_running_loop(),
            observer=self.counters,
            pool=self.pool,
            listeners=() if silent or self.feed is None else self.feed.listeners,
            dialect=settings.dialect,
            emit_s=settings.emit_interval_ms / 1e3,
        )
        self._part = None if part is None else replace(part, port=self._side_port)
        self.handover = None
        if self._part is not None:
            self.handover = build_handover(self._part, profile, self.scheduler, self.faults)
        self._routes = Routes(
            settings,
            self.scheduler,
            self.handover,
            self.feed,
            self.counters,
            int(self._started_unix_s),
            self,
            self.adapters,
        )

    @property
    def role(self) -> str:
        """See `Part`."""
        return "null" if self._part is None else self._part.part

    def switch(self, role: str, answer: Answer) -> None:
        """See `Part`; messages and order of the checks are SGLang's (disaggregation/role_switch.py)."""
        part, old_role = self._part, self.role

        def told(message: str, *, success: bool = False, safe: bool = True) -> None:
            body = {"success": success, "message": message, "old_role": old_role, "new_role": role}
            if not success:
                body["safe_to_restore"] = safe
            answer.send(200 if success else 400, orjson.dumps(body))

        if part is None or not part.switches:
            told("--enable-pd-role-switch is not set on this instance")
        elif self._switching is not None:
            told("another role switch is already in progress", safe=False)
        elif role not in ("prefill", "decode"):
            told(f"invalid new_role={role!r}")
        elif role == old_role:
            told("already in target role", success=True)
        elif not self._idle:
            told("instance is not idle; drain all requests before switching")
        else:
            taken = replace(part, part="prefill" if role == "prefill" else "decode")
            self._switching = asyncio.get_running_loop().create_task(
                self._switch(taken), name="engine.switch"
            )
            self._switching.add_done_callback(lambda task: self._switched(task, told))

    @property
    def _idle(self) -> bool:
        legs = {} if self.handover is None else self.handover.state()
        at = self.scheduler
        return not (at.running or at.waiting or at.held or any(legs.values()))

    async def _switch(self, part: HandoverSettings) -> None:
        """Take another part: caches are lost, and legs come to the new one."""
        self._routes.close()
        self.scheduler.clear()
        self.scheduler.close()
        if self.handover is not None:
            self.handover.close()
        self._build(part)
        assert self.handover is not None
        await self.handover.open(self.settings.host)
        self._side_port = self.handover.port

    def _switched(self, task: asyncio.Task[None], told: Callable[..., None]) -> None:
        self._switching = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            told("ok", success=True)
        else:
            told(f"role switch failed; instance unhealthy, restart required: {error}", safe=False)

    def _end(self) -> None:
        """The process is gone: nothing is computed, published or handed over any more."""
        if self._switching is not None:
            self._switching.cancel()
        self._routes.close()
        self.scheduler.close()
        if self.feed is not None:
            self.feed.close()
        if self.handover is not None:
            self.handover.close()

    def stats(self) -> Mapping[str, Any]:
        """Body of ``/_stats``; see `infos.stats`."""
        told = infos.stats(self.settings, self.counters, self.scheduler, self.handover)
        return {**told, "adapters": self.adapters.stats()}

    def opened(self, connection: Connection) -> None:
        """See `Handler`."""
        self._connections.add(connection)
        self._deserted.clear()
        if self._opening is None:  # it was accepted in the moment in which the port was closed
            connection.reset()

    def closed(self, connection: Connection) -> None:
        """See `Handler`."""
        self._connections.discard(connection)
        if not self._connections:
            self._deserted.set()

    def error_body(self, status: int) -> bytes:
        """See `Handler`."""
        return error_body(self.settings.dialect, status, "injected fault")

    def handle(self, request: Request, answer: Answer) -> None:
        """See `Handler`."""
        self._guard(self._dispatch, request, answer)

    def _guard(self, serve: Callable[[Request, Answer], None], request: Request, answer: Answer) -> None:
        try:
            serve(request, answer)
        except Exception:
            logger.exception("request failed", extra={"event": "request.failed", "path": request.path})
            answer.send(500, error_body(self.settings.dialect, 500, "internal error of the emulator"))

    def _dispatch(self, request: Request, answer: Answer) -> None:
        """Let the fault that hits this request strike, and the engine's API answer the others."""
        if request.path.startswith("/_"):
            answer_control(self._siblings, self, request, answer)
            return
        if self.faults.unhealthy and request.path.startswith("/health"):
            answer.send(503, b"")
            return
        brings_work = self._routes.brings_work(request)
        if brings_work and self._journal is not None:
            with self._journal.open("ab") as journal:
                # A gateway in front gives each request an id of its own, and passes this one on.
                named = request.headers.get(b"x-correlation-id") or request.headers.get(b"x-request-id", b"-")
                journal.write(named + b"\n")
        fault = self.faults.take() if brings_work else None
        if fault is None:
            self._routes.answer(request, answer)
        elif fault.kind == "slow" or (fault.kind == "stall" and fault.at_once):
            if fault.seconds:
                answer.later(fault.seconds, lambda: self._guard(self._routes.answer, request, answer))
        elif not fault.at_once:
            answer.fault = fault
            self._routes.answer(request, answer)
        elif fault.kind == "error":
            answer.send(fault.status, self.error_body(fault.status))
        else:
            answer.strike(fault)


def shared_pool(settings: EngineSettings) -> L3Pool | None:
    """The pool that engines with these settings share, if they do: one node, in memory."""
    if not settings.pool_tokens:
        return None
    return build_shared_pool(settings.engine(), L3Settings(nodes=1, memory_tokens=settings.pool_tokens))


def answer_control(
    engines: MutableMapping[int, EmulatedEngine], own: EmulatedEngine | None, request: Request, answer: Answer
) -> None:
    """Answer ``/_fault`` and ``/_stats`` for the engine that ``?port=`` names, or ``own``."""
    asked = parse_qs(request.query).get("port", [""])[0]
    engine = engines.get(int(asked)) if asked.isdecimal() else own
    if engine is None:
        ports = ", ".join(map(str, sorted(engines)))
        answer.send(404, orjson.dumps({"error": f"say which engine with ?port=, one of {ports}"}))
        return
    match request.method, request.path:
        case "GET", "/_stats":
            answer.send(200, orjson.dumps(engine.stats()))
        case "DELETE", "/_fault":
            engine.mend()
            answer.send(200, b"{}")
        case "POST", "/_fault":
            try:
                fault = Fault.parse(orjson.loads(request.body))
            except ValueError as error:
                answer.send(400, orjson.dumps({"error": str(error)}))
                return
            answer.send(200, b"{}")
            engine.inject(fault)
        case _:
            answer.send(404, orjson.dumps({"error": "there is only /_fault and /_stats"}))
