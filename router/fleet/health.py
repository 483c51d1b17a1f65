"""Active health checks: one loop per replica.

Started by `router.app`. Every ``interval_s`` (with jitter, so that replicas do not probe together)
it probes each worker's health endpoint, and at once a worker that is new or may have restarted
(`Registry.suspect`). A worker that became healthy or may have restarted, and with every tenth probe, is
also asked what it serves and when it started. A probe
that raises something unexpected counts as failed; the loop itself never ends.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from router.fleet.engine_info import (
    served_models,
    sglang_bootstrap_port,
    sglang_capacity_tokens,
    sglang_role,
    sglang_running_max,
    sglang_step_tokens,
    started_unix_ms,
    vllm_capacity_tokens,
)
from router.fleet.local_worker import Health, LocalWorker
from router.fleet.pages import page
from router.fleet.registry import Registry

logger = logging.getLogger(__name__)

PROBES_AT_ONCE = 64
DESCRIBE_EVERY = 10
SUSPICION_INTERVAL_S = 1.0
"""Least time between a probe and the next because of a suspicion: an engine that closes every connection soon
is not to be asked every time."""


@dataclass(frozen=True, slots=True)
class HealthRules:
    """How workers are probed.

    Attributes:
        interval_s: Time between two probes of a worker.
        unhealthy_interval_s: The same while it is not healthy: recovery should be seen soon.
        timeout_s: A probe that takes longer has failed.
        endpoint: Path that answers 2xx when the engine can serve.
    """

    interval_s: float
    unhealthy_interval_s: float
    timeout_s: float
    endpoint: str


class HealthChecks:
    """The probing loop."""

    def __init__(
        self,
        registry: Registry,
        client: httpx.AsyncClient,
        rules: HealthRules,
        connected: Callable[[LocalWorker, float], None] = lambda _, __: None,
    ) -> None:
        """Make the loop, not yet running.

        Args:
            registry: Told what workers say.
            client: Asks them.
            rules: How often.
            connected: Told of each new connection, and how long it took to make it, in seconds.
        """
        self._registry = registry
        self._connected = connected
        self._client = client
        self._rules = rules
        self._wake = asyncio.Event()
        self._due_s: dict[str, float] = {}
        self._probed_s: dict[str, float] = {}
        self._probing: set[str] = set()
        registry.on_change = self._wake.set

    def use(self, rules: HealthRules) -> None:
        """Probe by other rules from now on: everybody soon, if they differ."""
        if rules != self._rules:
            self._rules = rules
            self._due_s.clear()
            self._wake.set()

    async def run(self) -> None:
        """Probe until cancelled."""
        limit = asyncio.Semaphore(PROBES_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                # A worker probed in the meantime may be due sooner than those that wait now.
                wait_s = min(1.0, self._rules.interval_s, self._rules.unhealthy_interval_s)
                now_s = asyncio.get_running_loop().time()
                known = {local.worker.worker_id: local for local in self._registry.all()}
                for times_s in (self._due_s, self._probed_s):
                    for gone in times_s.keys() - known.keys():
                        del times_s[gone]
                for worker_id, local in known.items():
                    due_s = self._due_s.get(worker_id, 0.0)
                    if local.probes == 0:
                        due_s = now_s
                    elif local.suspected_us and local.health is Health.HEALTHY:
                        due_s = min(due_s, self._probed_s.get(worker_id, now_s) + SUSPICION_INTERVAL_S)
                    if now_s >= due_s and worker_id not in self._probing:
                        self._probing.add(worker_id)
                        group.create_task(self._probe(local, limit), name=f"probe {worker_id}")
                    elif worker_id not in self._probing:
                        wait_s = min(wait_s, due_s - now_s)
                try:
                    async with asyncio.timeout(max(wait_s, 0.01)):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    async def _probe(self, local: LocalWorker, limit: asyncio.Semaphore) -> None:
        worker_id = local.worker.worker_id
        try:
            async with limit:
                await self.probe(local)
        finally:
            self._probing.discard(worker_id)
            healthy = local.health is Health.HEALTHY
            interval_s = self._rules.interval_s if healthy else self._rules.unhealthy_interval_s
            now_s = self._probed_s[worker_id] = asyncio.get_running_loop().time()
            self._due_s[worker_id] = now_s + interval_s * random.uniform(0.9, 1.1)  # noqa: S311 - jitter

    async def probe(self, local: LocalWorker) -> None:
        """Probe one worker once and tell the registry."""
        asked_us = self._registry.now_us()
        try:
            ok, refused, detail = await self._check(local)
            unsure = local.health is not Health.HEALTHY or local.suspected_us > 0
            if ok and (unsure or local.misnamed or local.probes % DESCRIBE_EVERY == 0):
                await self._describe(local)
            if ok and local.misnamed:
                ok, detail = False, local.misnamed
        except Exception as error:
            logger.exception(
                "a health check failed inside the gateway",
                extra={"event": "probe.crashed", "worker_id": local.worker.worker_id},
            )
            ok, refused, detail = False, False, f"{type(error).__name__}: {error}"
        before = local.health
        if self._registry.probed(local, ok=ok, refused=refused, detail=detail, asked_us=asked_us):
            logger.log(
                logging.INFO if local.health is Health.HEALTHY else logging.WARNING,
                "worker is %s",
                local.health.value,
                extra={
                    "event": f"worker.{local.health.value}",
                    "worker_id": local.worker.worker_id,
                    "before": before.value,
                    "detail": detail,
                },
            )

    async def _check(self, local: LocalWorker) -> tuple[bool, bool, str]:
        """Whether the worker is well, whether it refused the connection, and what it said."""
        url, timeout_s = local.worker.url + self._rules.endpoint, self._rules.timeout_s
        connecting_s = time.monotonic()

        async def trace(event: str, _: object) -> None:
            nonlocal connecting_s
            if event == "connection.connect_tcp.started":
                connecting_s = time.monotonic()
            elif event == "connection.connect_tcp.complete":
                self._connected(local, time.monotonic() - connecting_s)

        try:
            async with (
                asyncio.timeout(timeout_s),
                self._client.stream("GET", url, timeout=timeout_s, extensions={"trace": trace}) as answer,
            ):
                return answer.is_success, False, f"HTTP {answer.status_code} from {self._rules.endpoint}"
        except httpx.ConnectTimeout:
            return False, False, f"no connection within {timeout_s:g} s"
        except httpx.ConnectError as error:
            return False, True, f"connection failed: {error}"
        except (httpx.TimeoutException, TimeoutError):
            return False, False, f"no answer within {timeout_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return False, False, f"{type(error).__name__}: {error}"

    async def _describe(self, local: LocalWorker) -> None:
        """Ask what the engine serves; what it does not answer stays as it was."""
        listed = _json(await self._text(local, "/v1/models"))
        models = local.models if listed is None else served_models(listed) or None
        asked_us = self._registry.now_us()
        metrics = await self._text(local, "/metrics")
        engine, capacity_tokens, info = "", 0, None
        known = local.worker.capacity_tokens and local.engine and not local.misnamed
        if not known or (local.engine == "sglang" and local.suspected_us):
            info = _json(await self._text(local, "/get_server_info"))
            capacity_tokens = sglang_capacity_tokens(info)
            if capacity_tokens:
                engine = "sglang"
            else:
                capacity_tokens = vllm_capacity_tokens(metrics)
                engine = "vllm" if "vllm:" in metrics else ("sglang" if "sglang:" in metrics else "")
        self._registry.described(
            local,
            models,
            engine,
            capacity_tokens,
            sglang_running_max(info),
            sglang_step_tokens(info),
            sglang_bootstrap_port(info),
            sglang_role(info),
        )
        started_ms = started_unix_ms(metrics)
        if started_ms:
            self._registry.started(local, started_ms, asked_us)

    async def _text(self, local: LocalWorker, path: str) -> str:
        """What a worker answers, whole and in time; empty if it does not."""
        body = await page(self._client, local.worker.url + path, self._rules.timeout_s)
        return "" if body is None else body.decode(errors="replace")


def _json(text: str) -> Any:
    """The JSON in a text, None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
