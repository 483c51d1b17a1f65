"""Loads adapters at engines, and unloads those that were used longest ago.

    POST /v1/load_lora_adapter, /v1/unload_lora_adapter    vLLM (with VLLM_ALLOW_RUNTIME_LORA_UPDATING)
    POST /load_lora_adapter, /unload_lora_adapter          SGLang (with --enable-lora)

Each load is done once for all requests that want it, and one at a time at a worker. A load that failed is
tried again after `AGAIN_S`. The engine's list counts: a restarted engine lists none, and gets it again.

Requests that are in flight at an unload end well: vLLM reads the adapter again for them
(lora/worker_manager.py, ``_apply_adapters``), SGLang unloads when they have ended
(managers/tokenizer_control_mixin.py, ``_unload_lora_adapter_locked``). So adapters with requests in flight
here go last. But a request that is still on its way would not find its adapter (404 of vLLM): from the first
moment of an unload no request for the adapter goes to its worker, here at once and from siblings within
`router.shared.adapter_uses.SYNC_US`, and the engine is asked when earlier ones are there. A sibling that
wants the adapter meanwhile loads it again when it is gone.
"""

import asyncio
import logging
import time
from typing import Any

import httpx

from router.engines import Description
from router.engines.sources import decoded
from router.fleet import Core, LocalWorker, ServedModel
from router.metric_families import ADAPTER_LOADS
from router.metrics import Metrics
from router.models.adapters import Adapters, holds
from router.shared import AdapterUses

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
AGAIN_S = 5.0

ARRIVAL_S = 1.0
"""Seconds after which a request that was sent to a worker counts as known to its engine."""

POLL_S = 0.02

TURNS_MAX = 16
"""Turns of the event loop, twice those in which a request goes on that waited for an adapter."""

LEAVING_POLL_S = 0.5
LEAVING_POLLS = 20
"""Loads of an adapter that a sibling is about to unload: until then the engine has it already."""

DETAIL_CHARS_MAX = 300

PREFIXES = {"vllm": ("/v1",), "sglang": ("",)}
"""In front of the path, by engine; of an engine that is not known both are tried."""


class AdapterLoader:
    """Loads the adapters of one process.

    Attributes:
        per_worker_max: Most declared adapters that a worker holds.
        uses: Uses of adapters by all replicas.
    """

    def __init__(
        self, core: Core, client: httpx.AsyncClient, metrics: Metrics, uses: AdapterUses | None = None
    ) -> None:
        self._registry, self._client, self._metrics = core.registry, client, metrics
        self._replicas = core.log.replicas
        self.uses = AdapterUses(core.log.now_us) if uses is None else uses
        self.per_worker_max = 1
        self._loads: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._failed: dict[tuple[str, str], tuple[float, str]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def stale(self) -> "asyncio.Task[None] | None":
        """Return the reading of the siblings' unloads for which a request should wait; None for none."""
        return self.uses.stale() if len(self._replicas()) > 1 else None

    async def first(self, adapters: Adapters, name: str) -> str:
        """Load an adapter where it should be, until one worker has it; return the reasons if none will."""
        loads = self.spread(adapters, name)
        if not loads:
            failed = [
                self._failed[key][1]
                for local in adapters.wanted(name)
                if (key := (local.worker.worker_id, name)) in self._failed
            ]
            return "; ".join(failed) or f"no healthy worker serves {adapters.rules[name].base}"
        reasons = []
        for load in asyncio.as_completed([asyncio.shield(load) for load in loads]):
            reason = await load
            if not reason:
                return ""
            reasons.append(reason)
        return "; ".join(reasons)

    def spread(self, adapters: Adapters, name: str) -> list[asyncio.Task[str]]:
        """Begin the loads that an adapter lacks; return those that are under way."""
        now_s, loads = time.monotonic(), []
        for local in adapters.wanted(name):
            key = local.worker.worker_id, name
            if holds(local, name) or self._failed.get(key, (0.0, ""))[0] > now_s:
                continue
            load = self._loads.get(key)
            if load is None:
                load = asyncio.create_task(self._load(local, adapters, name), name="adapter")
                self._loads[key] = load
                load.add_done_callback(lambda _, key=key: self._loads.pop(key, None))  # type: ignore[misc]
            loads.append(load)
        return loads

    async def close(self) -> None:
        """End the loads that are under way."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await self.uses.close()

    async def _load(self, local: LocalWorker, adapters: Adapters, name: str) -> str:
        """Load an adapter at a worker; return the reason if that failed."""
        rule, worker_id = adapters.rules[name], local.worker.worker_id
        async with self._locks.setdefault(worker_id, asyncio.Lock()):
            await self._make_room(local, adapters, name)
            body = {"lora_name": name, "lora_path": rule.path}
            reason = await self._ask(local, "load_lora_adapter", body)
            for _ in range(LEAVING_POLLS):
                if "already" not in reason or not await self.uses.is_leaving((worker_id, name)):
                    break
                await asyncio.sleep(LEAVING_POLL_S)
                reason = await self._ask(local, "load_lora_adapter", body)
            if "already" in reason:  # loaded by another replica
                reason = ""
            if not reason:
                await self.uses.returned((worker_id, name))
                self.follow()
            if not reason and not holds(local, name):
                served = ServedModel(name, root=rule.base, parent=rule.base)
                self._registry.described(local, (*(local.models or ()), served), Description())
        self._metrics.counts[ADAPTER_LOADS].add(("failed" if reason else "loaded",))
        level = logging.WARNING if reason else logging.INFO
        fields = {"event": "adapter.load", "adapter": name, "worker_id": worker_id, "detail": reason}
        logger.log(level, "an adapter was not loaded" if reason else "adapter loaded", extra=fields)
        self._failed.pop((worker_id, name), None)
        if reason:
            reason = f"{worker_id}: {reason}"
            self._failed[worker_id, name] = time.monotonic() + AGAIN_S, reason
        return reason

    async def _let_go_on(self, name: str) -> None:
        """Let the requests that waited for an adapter go on, before another one takes its place."""
        for _ in range(TURNS_MAX):
            if not self.uses.is_awaited(name):
                return
            await asyncio.sleep(0)

    async def _make_room(self, local: LocalWorker, adapters: Adapters, name: str) -> None:
        held = [
            served.model_id
            for served in local.models or ()
            if served.model_id in adapters.rules and served.model_id != name
        ]
        too_many = len(held) - self.per_worker_max + 1
        if too_many <= 0:
            return
        newest_us = await self.uses.newest(held)
        held.sort(key=lambda each: (self.uses.is_busy(each), newest_us[each]))
        for other in held[:too_many]:
            place = local.worker.worker_id, other
            await self._let_go_on(other)
            await self._idle(other)
            self.uses.leaves(place)
            self.follow()
            if len(self._replicas()) > 1:
                await self.uses.all_know(place)
            await self._idle(other)
            reason = await self._ask(local, "unload_lora_adapter", {"lora_name": other})
            self._metrics.counts[ADAPTER_LOADS].add(("not_unloaded" if reason else "unloaded",))
            fields = {"event": "adapter.unload", "adapter": other, "worker_id": local.worker.worker_id}
            logger.info("adapter unloaded", extra={**fields, "detail": reason})
            if reason:
                await self.uses.returned(place)
                self.follow()

    def follow(self) -> None:
        """Send no requests for adapters where they are being unloaded, even if health checks find them."""
        registry, leaving = self._registry, self.uses.leaving()
        if leaving == registry.withheld:
            return
        fresh, registry.withheld = leaving - registry.withheld, leaving
        for worker_id, _ in fresh:
            local = registry.get(worker_id)
            if local is not None:
                registry.described(local, local.models, Description())

    async def _idle(self, name: str) -> None:
        """Wait until no request of this process is in flight, or all are at their workers for sure."""
        for _ in range(round(ARRIVAL_S / POLL_S)):
            if not self.uses.is_busy(name):
                return
            await asyncio.sleep(POLL_S)

    async def _ask(self, local: LocalWorker, path: str, body: dict[str, str]) -> str:
        """Ask an engine; return the reason if it did not do so.

        A 404 that names the adapter is the engine's answer, not that of an unknown path: vLLM found no files,
        or has nothing to unload (entrypoints/openai/models/serving.py).
        """
        reason, name = "it has no such path", body["lora_name"]
        for prefix in PREFIXES.get(local.engine, ("/v1", "")):
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    url = f"{local.worker.url}{prefix}/{path}"
                    answer = await self._client.post(url, json=body, timeout=TIMEOUT_S)
            except TimeoutError:
                return f"no answer within {TIMEOUT_S:g} s"
            except httpx.HTTPError as error:
                return type(error).__name__
            if answer.status_code in (404, 405) and name not in answer.text:
                continue
            if answer.status_code == 404 and path.startswith("unload"):
                return ""
            said = decoded(answer.content, dict[str, Any]) or {}
            if answer.is_success and said.get("success", True):
                return ""
            text = answer.text.encode("ascii", "replace").decode()
            reason = f"HTTP {answer.status_code}: {text[:DETAIL_CHARS_MAX]}"
        return reason
