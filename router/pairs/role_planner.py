"""The slow loop: asks `disaggregation.role_plan`, publishes its plan, and turns workers.

`router.app` starts `RolePlanner.run`, which looks every ``roles.interval_s``, or every `TURNING_S` while a
worker is turning; with ``roles.mode`` off it only takes earlier plans back. The leader is the replica in turn
(`policies.turn_of`) of those with a live heartbeat in Redis: the heartbeat is the lease. If two lead at once,
the later plan counts, and the next leader sorts out their turns (`policies.disaggregation.role_turns`).

An engine without a call to switch its role (`router.engines`), or an unknown one, counts as switched at once:
the label ``convertible=true`` says so. Nothing depends on a plan: without one, threshold and roles stay as
configured. A failed look is logged and tried again in the next.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import isfinite

import httpx

from policies import (
    CONVERTIBLE_LABEL,
    DECODE,
    PREFILL,
    DecodeFit,
    OffloadPlan,
    ServiceLevel,
    Switched,
    Worker,
    turn_of,
)
from policies.disaggregation import (
    SWITCHED_OFF,
    TURNING_LABEL,
    RoleDemand,
    RoleMember,
    RoleRules,
    RoleStep,
    RoleVerdict,
    plan_roles,
    role_demand,
    role_taken,
    turn_roles,
)
from router.engines import DIALECTS, switches_role
from router.fleet import Core, Health, LocalWorker
from router.fleet.asking import page

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"[0-9.]+")

TURN = "roles"
"""Key of the replicas' turns."""

TURNING_S = 2.0
"""Seconds between two looks while a worker is turning: it should not stand idle for long when it is free."""

LEAD_S = 10.0
"""Seconds that a new leader waits: several times the delay of the log and a heartbeat."""


@dataclass(slots=True)
class RolePlanner:
    """Decides which workers prefill and decode, and from which length on prefill is remote.

    `decode_fit` returns this replica's measurements by worker class; `turned` is called with a worker's new
    role.
    """

    core: Core
    client: httpx.AsyncClient
    decode_fit: Callable[[str], DecodeFit]
    rules: RoleRules = field(default_factory=RoleRules)
    level: ServiceLevel = field(default_factory=ServiceLevel)
    turned: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    _changed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _leads_since_s: float | None = field(init=False, default=None)
    _reason: str = field(init=False, default="")
    _asked: dict[str, int] = field(init=False, default_factory=dict)
    """Start of each worker's engine that was asked for its role."""

    def use(self, rules: RoleRules, level: ServiceLevel) -> None:
        """Apply other rules from now on; the time to the next look begins again."""
        if (rules, level.tpot_slo_s) != (self.rules, self.level.tpot_slo_s):
            self.rules, self.level = rules, level
            self._changed.set()

    async def run(self) -> None:
        """Look now and then until cancelled."""
        while True:
            self._changed.clear()
            turning = any(member.turning for member in self.members())
            try:
                async with asyncio.timeout(
                    min(self.rules.interval_s, TURNING_S) if turning else self.rules.interval_s
                ):
                    await self._changed.wait()
            except TimeoutError:
                await self.look()

    async def look(self) -> None:
        """Decide and act, if this replica leads."""
        if not self.leads():
            return
        await self._follow_restarts()
        members = self.members()
        if not members:
            return
        verdict = self.verdict(members)
        step = turn_roles(verdict, members, *self._context(), self.rules)
        self._log(verdict)
        self._publish(step)
        if step.free:
            await asyncio.gather(*(self._switch(worker_id, role) for worker_id, role in step.free))

    def leads(self) -> bool:
        """Return True if this replica has led for long enough to act."""
        log = self.core.log
        if not log.status().connected or turn_of(TURN, log.replica, log.replicas()):
            self._leads_since_s = None
            return False
        now_s = self.clock()
        if self._leads_since_s is None:
            self._leads_since_s = now_s
        return now_s - self._leads_since_s >= LEAD_S

    def members(self) -> list[RoleMember]:
        """The workers that prefill or decode, as this replica sees them."""
        workers = self.core.registry.all()
        return [self._member(local) for local in workers if local.worker.role in (PREFILL, DECODE)]

    def demand(self, members: list[RoleMember]) -> RoleDemand:
        """Recent demand, and the work that it takes."""
        return role_demand(
            self.core.fleet, members, self._decode_fit, self.core.log.now_us(), self.level.tpot_slo_s
        )

    def verdict(self, members: list[RoleMember]) -> RoleVerdict:
        """The decision that this replica would make now."""
        if self.rules.mode == "off":
            return SWITCHED_OFF
        plan, _, now_us = self._context()
        return plan_roles(self.demand(members), members, plan, now_us, self.rules)

    def _context(self) -> tuple[OffloadPlan | None, str, int]:
        """The newest plan, this replica's id, and log time."""
        log = self.core.log
        return self.core.fleet.offload_plan, log.replica, log.now_us()

    async def _switch(self, worker_id: str, role: str) -> None:
        """Have a worker's engine take a role, and publish the outcome if the worker is still turning."""
        local = self.core.registry.get(worker_id)
        if local is None:
            return
        peers = [
            other.worker.url
            for other in self.core.registry.all()
            if other.engine == local.engine and other.worker.role == role and other.health is Health.HEALTHY
        ]
        outcome = await switch_role(self.client, local.worker.url, local.engine, role, peers)
        local = self.core.registry.get(worker_id)
        member = None if local is None else self._member(local)
        if member is None or not member.turning or not member.worker.draining:
            return
        before = member.worker.role
        self._publish(role_taken(member, role, outcome, *self._context()))
        worker = self.core.fleet.worker(worker_id)
        if worker is not None and worker.role != before:
            self.turned(worker.role)

    async def _follow_restarts(self) -> None:
        """Give restarted workers the role that their engines were started with, if they switch it."""
        asked: dict[str, int] = {}
        for local in self.core.registry.all() if self.rules.apply else ():
            worker, started = local.worker, self.core.fleet.started(local.worker.worker_id)
            if started is None or not started.cold or started.at_us <= worker.version[0]:
                continue
            if not switches_role(local.engine) or not _convertible(worker) or TURNING_LABEL in worker.labels:
                continue
            if self._asked.get(worker.worker_id) == started.started_unix_ms:
                asked[worker.worker_id] = started.started_unix_ms
            elif local.health is Health.HEALTHY:
                role = await role_of(self.client, worker.url, local.engine)
                asked[worker.worker_id] = started.started_unix_ms
                if role and role != worker.role and local.worker is worker:
                    self._log_change(worker.worker_id, f"is to {role}, as its engine was started")
                    self.core.registry.change(worker.worker_id, role=role)
        self._asked = asked

    def _decode_fit(self, worker_class: str) -> DecodeFit:
        own = self.decode_fit(worker_class)
        return own if own.known else self.core.fleet.decode_fit(worker_class)

    def _member(self, local: LocalWorker) -> RoleMember:
        worker, fleet = local.worker, self.core.fleet
        away = worker.site != fleet.rules.site
        served = sorted(model.model_id for model in local.models or ())
        return RoleMember(
            worker,
            site=worker.site if away else "",
            group="|".join((local.protocol, worker.site, str(fleet.buckets.of(local.slots[0])), *served)),
            well=local.health is Health.HEALTHY and worker.slot not in fleet.circuits.tripped,
            convertible=not away and _convertible(worker),
            inflight_requests=int(fleet.loads.inflight_requests[local.slots].sum()),
            held_tokens=sum(map(fleet.tree.held_blocks, local.slots)) * fleet.rules.block_tokens,
        )

    def _publish(self, step: RoleStep) -> None:
        for op in step.ops:
            self.core.log.publish(op)
        for worker_id, event in step.events:
            self._log_change(worker_id, event)

    def _log_change(self, worker_id: str, change: str) -> None:
        logger.info(
            "the role of a worker changes",
            extra={"event": "role.changes", "worker_id": worker_id, "told": change},
        )

    def _log(self, verdict: RoleVerdict) -> None:
        """Log a decision, unless only its numbers differ from the last one."""
        reason = _NUMBER.sub("", verdict.reason)
        if reason == self._reason:
            return
        self._reason = reason
        now, best = verdict.now, verdict.best
        threshold = now.threshold_tokens if now is not None else 0.0
        logger.info(
            "roles planned",
            extra={
                "event": "roles.planned",
                "reason": verdict.reason,
                "threshold_tokens": round(threshold) if threshold and isfinite(threshold) else None,
                "prefill": best.split.prefill_workers if best is not None else None,
                "decode": best.split.decode_workers if best is not None else None,
                "gain_ratio": round(verdict.gain_ratio, 4),
                "roles": dict(verdict.roles),
            },
        )


def _convertible(worker: Worker) -> bool:
    return worker.labels.get(CONVERTIBLE_LABEL, "").lower() == "true" and worker.role in (PREFILL, DECODE)


async def switch_role(
    client: httpx.AsyncClient, url: str, engine: str, role: str, peers: Iterable[str] = ()
) -> Switched:
    """Have an engine of a dialect, if any, take a role that `peers` have; repeating is harmless."""
    dialect = DIALECTS.get(engine)
    if dialect is None or dialect.role_switch is None:
        return Switched.DONE
    outcome, message = await dialect.role_switch.switch(client, partial(page, client), url, role, peers)
    if outcome is not Switched.EMPTIED:
        logger.warning(
            "an engine did not switch its role",
            extra={
                "event": "role.refused",
                "url": url,
                "role": role,
                "outcome": outcome.value,
                "detail": message[:200],
            },
        )
    return outcome


async def role_of(client: httpx.AsyncClient, url: str, engine: str) -> str:
    """Return an engine's role now: ``prefill``, ``decode``, or empty if it reports none."""
    dialect = DIALECTS.get(engine)
    if dialect is None or dialect.role_switch is None:
        return ""
    return await dialect.role_switch.role(partial(page, client), url)
