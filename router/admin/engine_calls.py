"""Routes that ask every worker: their metrics in one page, profiling, and flushing of caches.

The older routers serve these paths. Metrics get the label ``worker_addr``, as sglang-router and smg write it,
and each family stands once, as Prometheus wants it. Answers of workers are bounded.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from policies import Forget
from router.admin.audit import note_change
from router.admin.metrics_page import MetricsPage
from router.admin.parts import AdminParts
from router.engines.sources import decoded
from router.errors import ClientError
from router.fleet import Health
from router.fleet.asking import page

CALL_TIMEOUT_S = 10.0
CALLS_AT_ONCE = 64
BODY_BYTES_MAX = 1 << 16
"""Longest body of a call to profile: engines take a few names and numbers."""

NOT_DONE = "it answers that it did not"
NO_SUCH_PATH = "HTTP 404"

Call = Callable[[str], Awaitable[str | None]]
"""Asks the worker at a URL; returns the error, or None."""


def add_engine_calls(api: FastAPI, parts: AdminParts) -> None:
    """Add the routes."""

    @api.get("/engine_metrics", tags=["peers"], response_class=PlainTextResponse)
    async def engine_metrics() -> Response:
        """The metrics of all healthy workers, each with the label ``worker_addr``."""
        merged = MetricsPage()
        urls = [local.worker.url for local in parts.gateway.registry.all() if local.health is Health.HEALTHY]
        limit = asyncio.Semaphore(CALLS_AT_ONCE)

        async def read(url: str) -> tuple[str, bytes]:
            async with limit:
                return url, await page(parts.client, f"{url}/metrics", CALL_TIMEOUT_S) or b""

        for reading in asyncio.as_completed([read(url) for url in urls]):
            url, text = await reading
            await asyncio.to_thread(merged.add, url, text)
        return Response(merged.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.post("/flush_cache", tags=["peers"])
    @api.post("/reset_prefix_cache", tags=["peers"])
    async def flush_cache(request: Request) -> JSONResponse:
        """Flush the prefix cache of every worker, and forget the flushed workers' blocks in the tree."""
        return await _told(request, "flushed", await _flush_all(parts))

    @api.post("/start_profile", tags=["peers"])
    async def start_profile(request: Request) -> JSONResponse:
        """Start the profiler of every worker; the body passes to them as it is."""
        return await _profiled(request, "/start_profile")

    @api.post("/stop_profile", tags=["peers"])
    async def stop_profile(request: Request) -> JSONResponse:
        """Stop the profiler of every worker."""
        return await _profiled(request, "/stop_profile")

    async def _profiled(request: Request, path: str) -> JSONResponse:
        body = await request.body()
        if len(body) > BODY_BYTES_MAX:
            return await _told(request, "done", {"": "the body is too long"})

        async def call(url: str) -> str | None:
            return await _post(parts.client, f"{url}{path}", body)

        outcomes = await _all(parts, call)
        if outcomes and all(problem == NO_SUCH_PATH for problem in outcomes.values()):
            raise ClientError(
                f"No worker has {path}: start the engines with a profiler.",
                code="profiler_not_found",
                status=404,
            )
        return await _told(request, "done", outcomes)


async def _told(request: Request, done: str, outcomes: dict[str, str | None]) -> JSONResponse:
    """Answer with those that did as asked, and the errors of the others; 502 if none did."""
    well = [worker_id for worker_id, problem in outcomes.items() if problem is None]
    failed = {worker_id: problem for worker_id, problem in outcomes.items() if problem is not None}
    note_change(request, detail={done: len(well), "failed": len(failed)})
    return JSONResponse({done: well, "failed": failed}, 502 if failed and not well else 200)


async def _all(parts: AdminParts, call: Call) -> dict[str, str | None]:
    """Ask all workers; return the error of each, or None."""
    limit = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(url: str) -> str | None:
        async with limit:
            return await call(url)

    workers = [local.worker for local in parts.gateway.registry.all()]
    problems = await asyncio.gather(*(one(worker.url) for worker in workers))
    return {worker.worker_id: problem for worker, problem in zip(workers, problems, strict=True)}


async def _flush_all(parts: AdminParts) -> dict[str, str | None]:
    """Flush all workers."""
    log = parts.gateway.log
    ids = {local.worker.url: local.worker.worker_id for local in parts.gateway.registry.all()}

    async def flush(url: str) -> str | None:
        asked_us = log.now_us()
        problem = await _flush(parts.client, url)
        if problem is None:
            # KV events since then are newer than the flush.
            log.publish(Forget(ids[url], asked_us))
        return problem

    return await _all(parts, flush)


async def _flush(client: httpx.AsyncClient, url: str) -> str | None:
    """Flush one worker, SGLang's way, then vLLM's; return the error, or None.

    SGLang empties its host memory, too, and vLLM if it is told so. vLLM answers 200 and ``success: false``
    while requests or copies use blocks (0.32 ``entrypoints/serve/dev/cache/api_router.py``); older versions
    answer without a body.
    """
    problem = await _post(client, f"{url}/flush_cache")
    if problem == NO_SUCH_PATH:
        problem = await _post(client, f"{url}/reset_prefix_cache?reset_external=true")
    return "its blocks are in use" if problem == NOT_DONE else problem


async def _post(client: httpx.AsyncClient, url: str, body: bytes = b"") -> str | None:
    """Post to a worker; return the error, or None."""
    headers = {"content-type": "application/json"} if body else {}
    try:
        answer = await client.post(url, content=body, headers=headers, timeout=CALL_TIMEOUT_S)
    except httpx.HTTPError as error:
        return type(error).__name__
    if not answer.is_success:
        return f"HTTP {answer.status_code}"
    is_done = (decoded(answer.content, dict[str, Any]) or {}).get("success", True)
    return None if is_done else NOT_DONE
