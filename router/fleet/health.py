"""Active health checks: one loop per replica, started by `router.app`.

It probes each worker every ``interval_s`` (with jitter, so that replicas do not probe together), and at once
if it is new or may have restarted (`Registry.suspect`). A worker that became healthy or may have restarted is
also asked for its description and start time, and any worker with every tenth probe. An unexpected exception
in a probe counts as failed; the loop itself never ends.

If probes begin for `STUCK_S` and none tries to connect, or one never ends, the asker is stuck: probes under
way are ended and the asker is rebuilt, logged and counted. Time in which the whole process stood still does
not count. A worker that answers with an instance of this gateway (`INSTANCE_HEADER`) is unhealthy: requests
would go round in circles.
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

from router.engines import DIALECTS, Description
from router.fleet.asking import PAGE_BYTES_MAX, Asker, AskError, NotConnected, TooLate
from router.fleet.engine_info import served_models, started_unix_ms
from router.fleet.local_worker import Health, HealthRules, LocalWorker
from router.fleet.registry import Registry
from router.fleet.timetable import PLACES, YOUNG_S, Timetable

logger = logging.getLogger(__name__)

DESCRIBE_EVERY = 10
SUSPICION_INTERVAL_S = 1.0
"""Least time between two probes because of a suspicion: some engines close every connection soon."""

BEGUN_AT_ONCE = 32
PAUSE_S = 0.01
"""Pause after `BEGUN_AT_ONCE` probes began in one turn of the event loop: 3,000 in a second."""

SCAN_S_MIN, SCAN_S_MAX = 0.05, 1.0
"""Bounds of the time between two scans of the workers; one takes a millisecond for a thousand."""

STUCK_S = 15.0
"""Time without a sign of life after which the asker is stuck; at least three timeouts."""

PAGES = 4
"""Most questions of one probe, each of which may last for the timeout."""

UNHEALTHY_INTERVAL_S_MAX = 2.0
"""Longest time between two probes of an unhealthy worker, so that its return is seen soon."""

V1_HINT = "; leave /v1 out of the worker's URL"
"""Advice for a worker whose URL is the base URL of OpenAI's clients."""

INSTANCE_HEADER = "x-cacheway-instance"
"""Header of a gateway's answer to a health check with its `instance_of`."""


def instance_of(replica: str) -> str:
    """Return the instance name of a replica: a hash of its id."""
    return blake2b(replica.encode(), digest_size=12, person=b"cacheway-replica").hexdigest()


class HealthChecks:
    """The probing loop; `rebuilt` counts how often the asker was stuck."""

    def __init__(
        self,
        registry: Registry,
        asker: Asker,
        rules: HealthRules,
        connected: Callable[[LocalWorker, float], None] = lambda _, __: None,
        *,
        replicas: Callable[[], Collection[str]] = tuple,
        places: int = PLACES,
    ) -> None:
        """Make the loop, not yet running.

        `connected` is called with the seconds that a new connection took; `replicas` returns the ids of live
        ones; `places` bounds the probes, and so the connections, at a time.
        """
        self._registry = registry
        self._connected = connected
        self._asker = asker
        self._rules = rules
        self._replicas = replicas
        self._own_instances: tuple[Collection[str], frozenset[bytes]] = ((), frozenset())
        self._timetable = Timetable(places)
        self._wake = asyncio.Event()
        self._changed = True
        self._probed_s: dict[str, float] = {}
        self._running: dict[str, tuple[asyncio.Task[None], float]] = {}
        self._given_up: set[str] = set()
        self._no_progress_since_s: float | None = None
        """Start of the first probe since which none has shown a sign of life, in ``_awake_s``."""
        self._awake_s = 0.0
        """Time that this loop waited as it meant to: a process that stands still hears no sign of life."""
        self.rebuilt = 0
        registry.on_change = self._rescan

    def use(self, rules: HealthRules) -> None:
        """Apply other rules from now on; if they differ, probe all workers soon."""
        if rules != self._rules:
            self._rules = rules
            self._timetable.keep(())
            self._rescan()

    async def all_probed(self) -> None:
        """Wait until each worker was probed once."""
        while any(local.probes == 0 for local in self._registry.all()):  # noqa: ASYNC110 - workers come and go
            await asyncio.sleep(0.02)

    async def run(self) -> None:
        """Probe until cancelled."""
        loop = asyncio.get_running_loop()
        workers: dict[str, LocalWorker] = {}
        scanned_s = -SCAN_S_MAX
        self._no_progress_since_s = None
        turn_s, wait_s = loop.time(), 0.0
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                now_s = loop.time()
                self._awake_s += min(now_s - turn_s, wait_s)
                turn_s = now_s
                if now_s - scanned_s >= (SCAN_S_MIN if self._changed else SCAN_S_MAX):
                    scanned_s, self._changed = now_s, False
                    workers = self._scan(now_s)
                self._watch(self._awake_s)
                if self._timetable.is_held_up(now_s):
                    self._give_up(workers)
                begun = self._timetable.begin(now_s, BEGUN_AT_ONCE)
                for worker_id in begun:
                    if worker_id not in workers:  # removed while it was probed
                        self._timetable.end(worker_id)
                        continue
                    task = group.create_task(self._probe(workers[worker_id]), name=f"probe {worker_id}")
                    self._running[worker_id] = task, self._awake_s
                if begun and self._no_progress_since_s is None:
                    self._no_progress_since_s = self._awake_s
                if len(begun) == BEGUN_AT_ONCE:
                    wait_s = PAUSE_S
                    await asyncio.sleep(wait_s)
                    continue
                # A worker that is probed meanwhile may be due sooner than the waiting ones.
                most_s = min(SCAN_S_MAX, self._rules.health_check_interval_s)
                wait_s = max(self._timetable.wait_s(now_s, SCAN_S_MIN if self._changed else most_s), PAUSE_S)
                try:
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    def _rescan(self) -> None:
        self._changed = True
        self._wake.set()

    def _scan(self, now_s: float) -> dict[str, LocalWorker]:
        """Plan probes of new and suspected workers; forget the removed ones."""
        timetable = self._timetable
        workers = {local.worker.worker_id: local for local in self._registry.all()}
        timetable.keep(workers)
        for gone in self._probed_s.keys() - workers.keys():
            del self._probed_s[gone]
        for worker_id, local in workers.items():
            if timetable.is_running(worker_id):
                continue
            due_s = timetable.due_s(worker_id)
            if due_s is None or (local.probes == 0 and due_s > now_s):
                timetable.plan(worker_id, now_s)
            elif local.suspected_us and local.health is Health.HEALTHY:
                soon_s = self._probed_s.get(worker_id, now_s) + SUSPICION_INTERVAL_S
                if due_s > soon_s:
                    timetable.plan(worker_id, soon_s)
        return workers

    def _watch(self, awake_s: float) -> None:
        stuck_s = max(STUCK_S, 3 * self._rules.health_check_timeout_s)
        endless_s = stuck_s + PAGES * self._rules.health_check_timeout_s
        oldest_s = next((begun_s for _, begun_s in self._running.values()), awake_s)
        unheard_s = 0.0 if self._no_progress_since_s is None else awake_s - self._no_progress_since_s
        if unheard_s <= stuck_s and awake_s - oldest_s <= endless_s:
            return
        self.rebuilt += 1
        logger.error(
            "health checks were stuck: the gateway rebuilds its connections to workers",
            extra={
                "event": "probes.stuck",
                "probes": len(self._running),
                "unheard_s": round(unheard_s, 1),
                "oldest_s": round(awake_s - oldest_s, 1),
                "rebuilt": self.rebuilt,
            },
        )
        for task, begun_s in self._running.values():
            if unheard_s > stuck_s or awake_s - begun_s > endless_s:
                task.cancel()
        self._no_progress_since_s = None
        self._asker.rebuild()

    def _give_up(self, workers: Mapping[str, LocalWorker]) -> None:
        """End the oldest probes of unhealthy workers, so that others can be probed."""
        count = BEGUN_AT_ONCE
        for worker_id, (task, begun_s) in self._running.items():
            if self._awake_s - begun_s <= YOUNG_S:
                return
            local = workers.get(worker_id)
            if worker_id in self._given_up or (local is not None and local.health is Health.HEALTHY):
                continue
            self._given_up.add(worker_id)
            task.cancel()
            count -= 1
            if not count:
                return

    def _note_progress(self) -> None:
        """Note that a probe tried to connect, or ended otherwise than by waiting."""
        self._no_progress_since_s = None

    async def _probe(self, local: LocalWorker) -> None:
        worker_id = local.worker.worker_id
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            await self.probe(local)
        except Exception:
            logger.exception(
                "the outcome of a health check could not be taken in",
                extra={"event": "probe.crashed", "worker_id": worker_id},
            )
        except asyncio.CancelledError:
            if worker_id not in self._given_up:
                raise
            took_s = loop.time() - begun_s
            detail = f"no answer within {took_s:.1f} s; too many workers do not answer to wait for longer"
            self._registry.probed(local, ok=False, refused=False, detail=detail)
        finally:
            self._ended(local, begun_s, loop.time())

    def _ended(self, local: LocalWorker, begun_s: float, now_s: float) -> None:
        worker_id = local.worker.worker_id
        self._given_up.discard(worker_id)
        self._running.pop(worker_id, None)
        self._timetable.end(worker_id)
        if local.removed:
            return
        healthy = local.health is Health.HEALTHY
        interval_s = self._rules.health_check_interval_s
        if not healthy:
            interval_s = min(interval_s, UNHEALTHY_INTERVAL_S_MAX)
        self._probed_s[worker_id] = now_s
        self._timetable.plan(
            worker_id,
            now_s + interval_s * random.uniform(0.9, 1.1),  # noqa: S311 - jitter
            slow=not healthy and now_s - begun_s > YOUNG_S,
        )

    async def probe(self, local: LocalWorker) -> None:
        """Probe one worker once, and report to the registry."""
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
                _WORDS.get(local.health, "worker is starting"),
                extra={
                    "event": f"worker.{local.health.value}",
                    "worker_id": local.worker.worker_id,
                    "before": before.value,
                    "detail": detail,
                },
            )

    async def _check(self, local: LocalWorker) -> tuple[bool, bool, str]:
        """Return success, a refused connection, and the outcome in words."""
        endpoint, timeout_s = self._rules.health_check_endpoint, self._rules.health_check_timeout_s
        try:
            answer = await self._asker.ask(
                "GET",
                local.worker.url + endpoint,
                timeout_s=timeout_s,
                head_only=True,
                begun=self._note_progress,
                connected=partial(self._connected, local),
            )
        except TooLate as error:
            if error.connected:
                self._note_progress()
            return False, False, f"no {'answer' if error.connected else 'connection'} within {timeout_s:g} s"
        except NotConnected as error:
            self._note_progress()
            return False, True, f"connection failed: {error}"
        except AskError as error:
            self._note_progress()
            return False, False, f"no answer: {error}"
        self._note_progress()
        instance = answer.header(INSTANCE_HEADER.encode())
        if instance is not None and instance in self._instances():
            return False, False, "it is this gateway itself: requests would go round in circles"
        hint = "" if answer.is_success or not local.worker.url.endswith("/v1") else V1_HINT
        return answer.is_success, False, f"HTTP {answer.status} from {endpoint}{hint}"

    def _instances(self) -> frozenset[bytes]:
        replicas = self._replicas()
        if replicas != self._own_instances[0]:
            self._own_instances = replicas, frozenset(instance_of(replica).encode() for replica in replicas)
        return self._own_instances[1]

    async def _describe(self, local: LocalWorker) -> None:
        """Ask the engine for its description; fields without an answer stay."""
        listed = _json(await self._text(local, "/v1/models"))
        models = local.models if listed is None else served_models(listed) or None
        asked_us = self._registry.now_us()
        metrics = await self._text(local, "/metrics")
        complete = local.worker.capacity_tokens and local.engine and not local.misnamed
        described = Description()
        if not complete or local.suspected_us:
            described = await self._description(local, metrics)
        self._registry.described(local, models, described)
        if described.engine:
            self._registry.host_memory(local, described.host_tokens)
        started_ms = started_unix_ms(metrics)
        if started_ms:
            self._registry.started(local, started_ms, asked_us)

    async def _description(self, local: LocalWorker, metrics: str) -> Description:
        """Read the engine's own page, else its metrics."""
        described = Description()
        for dialect in DIALECTS.values():
            if dialect.info_page:
                described = dialect.describe(_json(await self._text(local, dialect.info_page)), metrics)
                if described.capacity_tokens:
                    return replace(described, engine=dialect.name)
        for dialect in DIALECTS.values():
            if dialect.metrics_prefix in metrics:
                return replace(
                    described,
                    engine=dialect.name,
                    capacity_tokens=dialect.capacity_tokens(metrics),
                    ranks=dialect.ranks(metrics),
                )
        return described

    async def _text(self, local: LocalWorker, path: str) -> str:
        """Return a page as text; empty on any failure."""
        try:
            answer = await self._asker.ask(
                "GET",
                local.worker.url + path,
                timeout_s=self._rules.health_check_timeout_s,
                bytes_max=PAGE_BYTES_MAX,
            )
        except AskError:
            return ""
        return answer.body.decode(errors="replace") if answer.is_success else ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_WORDS = {
    Health.HEALTHY: "worker is healthy",
    Health.UNHEALTHY: "worker fails its health checks: no new requests until they succeed; see its log",
}
