"""Runs the slow loop: asks `disaggregation.role_plan` now and then, says its answer, and turns workers.

`RolePlanner.run` is started by `router.app` and looks every ``roles.interval_s``, or every `TURNING_S` while
a worker is turning; with ``roles.mode`` off it only takes back what was planned before. One replica leads:
the one whose turn it is (`policies.turn_of`) among those whose heartbeats in Redis live. The heartbeat is the
lease. A leader that dies, or does not reach Redis, leads no more when it expires, and the next begins
`LEAD_S` later, when what the last one said has arrived. A lease of its own would say the same a second time,
and could disagree with it. If two ever lead at once, the later plan counts everywhere, and what they both
turn is sorted out by whoever leads then (`policies.disaggregation.role_turns`).

The decisions about a turning worker are pure (`turn_roles`, `role_taken`). The planner carries them out: it
asks the engine to take a role, and publishes what became of that. An engine whose dialect has no call for it
(`router.engines`), or that is not known, counts as switched at once: the label ``convertible=true`` says so.

Nothing depends on a plan: without one the threshold is the settings', and roles stay what they are. What goes
wrong in a look is logged and tried again in the next.
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
    SWITCHED_OFF,
    TURNING_LABEL,
    DecodeFit,
    OffloadPlan,
    RoleDemand,
    RoleMember,
    RoleRules,
    RoleStep,
    RoleVerdict,
    ServiceLevel,
    Switched,
    Worker,
    plan_roles,
    role_demand,
    role_taken,
    turn_of,
    turn_roles,
)
from router.engines import DIALECTS, switches_role
from router.fleet.core import Core
from router.fleet.local_worker import Health, LocalWorker
from router.fleet.pages import page

logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"[0-9.]+")

TURN = "roles"
"""What the replicas take turns for."""

TURNING_S = 2.0
"""Between two looks while a worker is turning: it should not stand idle for long when it is free."""

LEAD_S = 10.0
"""Whoever begins to lead waits so long: several times what the log and a heartbeat take."""


@dataclass(slots=True)
class RolePlanner:
    """Decides who prefills and who decodes, and from which length on prefill is remote.

    Attributes:
        core: The fleet.
        client: Asks engines to switch.
        decode_fit: What this replica learned of decode, by worker class.
        rules: When roles change.
        level: What is promised.
        turned: Told into which role a worker turned.
        clock: Monotonic seconds.
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
    """Which start of a worker's engine was asked for its role."""

    def use(self, rules: RoleRules, level: ServiceLevel) -> None:
        """Plan by these from now on; the time to the next look begins anew."""
        if (rules, level.tpot_slo_s) != (self.rules, self.level.tpot_slo_s):
            self.rules, self.level = rules, level
            self._changed.set()

    async def run(self) -> None:
        """Look now and then, for ever."""
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
        """Decide and go on, if this replica leads."""
        if not self.leads():
            return
        await self._follow_restarts()
        members = self.members()
        if not members:
            return
        verdict = self.verdict(members)
        step = turn_roles(verdict, members, *self._known(), self.rules)
        self._log(verdict)
        self._say(step)
        if step.free:
            await asyncio.gather(*(self._switch(worker_id, role) for worker_id, role in step.free))

    def leads(self) -> bool:
        """Whether this replica has led for long enough to act."""
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
        """What came lately, and what it takes."""
        return role_demand(
            self.core.fleet, members, self._decode_fit, self.core.log.now_us(), self.level.tpot_slo_s
        )

    def verdict(self, members: list[RoleMember]) -> RoleVerdict:
        """What this replica would decide now."""
        if self.rules.mode == "off":
            return SWITCHED_OFF
        plan, _, now_us = self._known()
        return plan_roles(self.demand(members), members, plan, now_us, self.rules)

    def _known(self) -> tuple[OffloadPlan | None, str, int]:
        """The newest plan, who this replica is, and log time."""
        log = self.core.log
        return self.core.fleet.offload_plan, log.replica, log.now_us()

    async def _switch(self, worker_id: str, role: str) -> None:
        """Make a worker's engine take a role, and say what the worker is then, if it is still turning."""
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
        self._say(role_taken(member, role, outcome, *self._known()))
        worker = self.core.fleet.worker(worker_id)
        if worker is not None and worker.role != before:
            self.turned(worker.role)

    async def _follow_restarts(self) -> None:
        """Give workers that began anew the role that their engines were started with, if they switch it."""
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
                    self._told(worker.worker_id, f"is to {role}, as its engine was started")
                    self.core.registry.change(worker.worker_id, role=role)
        self._asked = asked

    def _decode_fit(self, worker_class: str) -> DecodeFit:
        """What this replica has learned of decode, or else what the others have."""
        own = self.decode_fit(worker_class)
        return own if own.known else self.core.fleet.decode_fit(worker_class)

    def _member(self, local: LocalWorker) -> RoleMember:
        worker, fleet = local.worker, self.core.fleet
        away = worker.site != fleet.rules.site
        served = sorted(model.model_id for model in local.models or ())
        return RoleMember(
            worker,
            site=worker.site if away else "",
            group="|".join((local.protocol, worker.site, str(fleet.buckets.of(worker.slot)), *served)),
            well=local.health is Health.HEALTHY and worker.slot not in fleet.circuits.tripped,
            convertible=not away and _convertible(worker),
            inflight_requests=int(fleet.loads.inflight_requests[worker.slot]),
            held_tokens=fleet.tree.held_blocks(worker.slot) * fleet.rules.block_tokens,
        )

    def _say(self, step: RoleStep) -> None:
        for op in step.ops:
            self.core.log.publish(op)
        for worker_id, event in step.events:
            self._told(worker_id, event)

    def _told(self, worker_id: str, told: str) -> None:
        logger.info(
            "the role of a worker changes",
            extra={"event": "role.changes", "worker_id": worker_id, "told": told},
        )

    def _log(self, verdict: RoleVerdict) -> None:
        """Log what is decided, if it is something else than before but for its numbers."""
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
    """Whether somebody said that its role may change."""
    return worker.labels.get(CONVERTIBLE_LABEL, "").lower() == "true" and worker.role in (PREFILL, DECODE)


async def switch_role(
    client: httpx.AsyncClient, url: str, engine: str, role: str, peers: Iterable[str] = ()
) -> Switched:
    """Make an engine take a role; asking again does no harm.

    Args:
        client: Asks it.
        url: Base URL of its worker.
        engine: Name of its dialect, or empty.
        role: ``prefill`` or ``decode``.
        peers: Base URLs of workers whose engines have that role.
    """
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
    """Which role an engine has now: ``prefill``, ``decode``, or empty if it does not say."""
    dialect = DIALECTS.get(engine)
    if dialect is None or dialect.role_switch is None:
        return ""
    return await dialect.role_switch.role(partial(page, client), url)
