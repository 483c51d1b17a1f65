"""Turning a worker from prefill to decode or back, through changes of leader and failures.

Its register in the log alone holds the progress: a worker that turns *drains* under the label `turning`,
which names its new role. The newest `WorkerPut` counts whole, so a new leader goes on where the last stopped.

                  plan                nothing in flight             the engine has taken it
    in its role ───────> turning ─────────────────────> free ────────────────────────────────> in the other
         ^                  │ not free in time,           │ not taken in time, refused,
         │                  │ or unwell                   │ or a reason to stay
         └──────────────────┴─────────────────────────────┘ by way of the engine

The shell switches the engine (`router.pairs.role_planner`), maybe twice: a leader may die between that and
its operation in the log. So only the engine's answer ends the state *free*; an unwell worker waits until it
is well. An engine that failed half way keeps draining, without the label, until an operator mends it.

No step leaves workers that work together without one of a role (`RoleMember.group`). A worker that no longer
drains, or has lost the label, was taken back by an operator. Two leaders at once, in a partition, turn more
workers than one would; those beyond the size of a step go back.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from policies.disaggregation.role_plan import (
    TURNING_LABEL,
    RoleMember,
    RoleRules,
    RoleVerdict,
    size_of_step,
)
from policies.fleet.roles import DECODE, PREFILL, Switched
from policies.state.ops import OffloadPlan, Op
from radix import Forget

STUCK_S = 3600.0
"""Seconds for which a worker that could not turn is not asked again."""


@dataclass(frozen=True, slots=True)
class RoleStep:
    """Next actions.

    Attributes:
        ops: Operations to publish, in this order.
        free: Workers with nothing in flight, and the roles that their engines are to take: then `role_taken`.
        events: Worker and event, for people.
    """

    ops: tuple[Op, ...] = ()
    free: tuple[tuple[str, str], ...] = ()
    events: tuple[tuple[str, str], ...] = ()


def turn_roles(
    verdict: RoleVerdict,
    members: Sequence[RoleMember],
    current: OffloadPlan | None,
    replica: str,
    now_us: int,
    rules: RoleRules,
) -> RoleStep:
    """Continue the turns under way, and begin those of a verdict on the same members."""
    changes = _Changes(replica, now_us, current)
    left = Counter((member.group, member.worker.role) for member in members if member.serves)
    turn = 0
    free: list[tuple[str, str]] = []
    for member in sorted((one for one in members if one.turning), key=_since):
        if not member.worker.draining or member.turning not in (PREFILL, DECODE):
            changes.put(member, "it was taken back")
            continue
        turn += member.well
        why = _in_the_way(member, left, turn > size_of_step(members), now_us, rules)
        if member.inflight_requests:
            if why or not member.well:
                changes.gives_up(member, why or "it is unwell")
        elif member.well:
            free.append((member.worker_id, member.worker.role if why else member.turning))
    if rules.apply:
        by_id = {member.worker_id: member for member in members}
        for worker_id, role in verdict.roles.items():
            changes.begins(by_id[worker_id], role)
    return RoleStep(changes.ops(verdict), tuple(free), tuple(changes.events))


def role_taken(
    member: RoleMember, role: str, outcome: Switched, current: OffloadPlan | None, replica: str, now_us: int
) -> RoleStep:
    """Report the outcome of an engine's switch to a role, or to its own, while its worker still turns."""
    changes = _Changes(replica, now_us, current)
    match outcome:
        case Switched.DONE | Switched.EMPTIED:
            changes.ends(member, role, emptied=outcome is Switched.EMPTIED)
        case Switched.REFUSED:
            changes.gives_up(member, "its engine refuses")
        case Switched.BROKEN:
            changes.gives_up(member, "its engine failed half way and must be restarted", broken=True)
        case Switched.LATER:
            return RoleStep()
    return RoleStep(changes.ops(None), events=tuple(changes.events))


def _since(member: RoleMember) -> tuple[int, str]:
    return member.worker.version[0], member.worker_id


def _in_the_way(
    member: RoleMember, left: Mapping[tuple[str, str], int], too_many: bool, now_us: int, rules: RoleRules
) -> str:
    if not rules.apply:
        return "roles are no longer changed"
    if not left[member.group, member.worker.role]:
        return f"no other worker is left to {member.worker.role}"
    if too_many:
        return "too many turn at once"
    if now_us - member.worker.version[0] > rules.drain_s_max * 1e6:
        return f"it did not get free in {rules.drain_s_max:.0f} s"
    return ""


@dataclass(slots=True)
class _Changes:
    replica: str
    now_us: int
    current: OffloadPlan | None
    events: list[tuple[str, str]] = field(default_factory=list)
    _puts: list[Op] = field(default_factory=list)
    _turned: dict[str, str] = field(default_factory=dict)
    _stuck: list[str] = field(default_factory=list)
    _changed: bool = False

    def begins(self, member: RoleMember, role: str) -> None:
        self._changed = True
        self._turned[member.worker_id] = role
        self.put(member, f"drains to {role}", draining=True, turning=role)

    def ends(self, member: RoleMember, role: str, *, emptied: bool) -> None:
        """Give a worker its old role or the other, with the cache as the engine left it."""
        self._changed = True
        if emptied:
            self._puts.append(Forget(member.worker_id, self.now_us))
        if role == member.worker.role:
            self._stuck.append(member.worker_id)
        self.put(member, f"is to {role} now", role=role)

    def gives_up(self, member: RoleMember, why: str, *, broken: bool = False) -> None:
        """Leave a worker in its role, and alone for a while."""
        self._changed = True
        self._stuck.append(member.worker_id)
        self.put(member, f"does not turn to {member.turning}: {why}", draining=broken)

    def put(
        self, member: RoleMember, event: str, *, role: str = "", draining: bool = False, turning: str = ""
    ) -> None:
        self.events.append((member.worker_id, event))
        worker = member.worker
        labels = {name: value for name, value in worker.labels.items() if name != TURNING_LABEL}
        if turning:
            labels[TURNING_LABEL] = turning
        fields = {"draining": draining, "drain_us": 0, "leaving": False, **({"role": role} if role else {})}
        self._puts.append(worker.changed(self.now_us, self.replica, labels, **fields))

    def ops(self, verdict: RoleVerdict | None) -> tuple[Op, ...]:
        """All operations, the plan first: if this replica dies midway, changes keep their dwell time."""
        plan = None if verdict is None else verdict.plan(self.current, self.replica, self.now_us)
        if plan is None and self._changed:
            plan = self.current if self.current is not None else OffloadPlan(0, "")
        if plan is None:
            return tuple(self._puts)
        since_us = self.now_us - round(STUCK_S * 1e6)
        stuck = {worker: at_us for worker, at_us in plan.stuck_us.items() if at_us > since_us}
        plan = msgspec.structs.replace(
            plan,
            at_us=max(self.now_us, plan.at_us, (self.current.at_us if self.current is not None else 0) + 1),
            replica=self.replica,
            changed_us=self.now_us if self._changed else plan.changed_us,
            turned=self._turned or plan.turned,
            stuck_us={**stuck, **dict.fromkeys(self._stuck, self.now_us)},
        )
        return (plan, *self._puts)
