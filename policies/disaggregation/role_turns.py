"""How a worker turns from prefill to decode or back, whoever leads, and whoever dies meanwhile.

Its register in the log says how far it is, and nothing else does: a worker that turns *drains* under the
label `turning`, which names the role that it is to have. All of it is one `WorkerPut`, of which the newest
counts whole, so every replica sees the same, and one that leads from now on goes on where the last stopped.

                  plan                nothing in flight             the engine has taken it
    in its role ───────> turning ─────────────────────> free ────────────────────────────────> in the other
         ^                  │ not free in time,           │ not taken in time, refused,
         │                  │ or unwell                   │ or a reason to stay
         └──────────────────┴─────────────────────────────┘ by way of the engine

What an engine has to do is the shell's affair (`router.fleet.role_planner`), and may be done twice. A leader
may have died between that and its word in the log, so of a free worker nobody knows which role its engine
has: it leaves that state only by what the engine answers, to the one side or the other. One that is unwell
then waits until it is well, and nobody waits for it. An engine that failed half way is neither: it goes on
draining, without the label, until somebody looks after it.

No step leaves those that work together without a worker of a role (`RoleMember.group`). An operator who
changes a turning worker has the last word: one that no longer drains, or has lost the label, is not turning.
Two leaders at once, which a partition can make, turn more workers than one would; those beyond what one step
may turn go back.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from policies.disaggregation.role_plan import (
    DECODE,
    PREFILL,
    TURNING_LABEL,
    RoleMember,
    RoleRules,
    RoleVerdict,
    size_of_step,
)
from policies.fleet.fleet import Worker
from policies.state.ops import OffloadPlan, Op, WorkerPut
from radix import Forget

STUCK_S = 3600.0
"""A worker that could not turn is not asked again for so long."""


class Switched(StrEnum):
    """What became of an engine that was to take a role.

    DONE: it has it, and kept its cache. EMPTIED: the same with an empty cache. LATER: not yet, or nobody
    knows. REFUSED: it keeps the one it has. BROKEN: it has none.
    """

    DONE = "done"
    EMPTIED = "emptied"
    LATER = "later"
    REFUSED = "refused"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class RoleStep:
    """What to do now.

    Attributes:
        ops: What to say in the log, in this order.
        free: Workers with nothing in flight, and the roles that their engines are to take: then `role_taken`.
        told: What happened to which worker, for people.
    """

    ops: tuple[Op, ...] = ()
    free: tuple[tuple[str, str], ...] = ()
    told: tuple[tuple[str, str], ...] = ()


def turn_roles(
    verdict: RoleVerdict,
    members: Sequence[RoleMember],
    known: OffloadPlan | None,
    replica: str,
    now_us: int,
    rules: RoleRules,
) -> RoleStep:
    """Go on with what is turning, and begin what the verdict says.

    Args:
        verdict: Of `plan_roles`, on the same members.
        members: The workers that prefill or decode.
        known: The newest plan.
        replica: Who leads.
        now_us: Log time.
        rules: When roles change.
    """
    said = _Saying(replica, now_us, known)
    left = Counter((member.group, member.worker.role) for member in members if member.serves)
    turn = 0
    free: list[tuple[str, str]] = []
    for member in sorted((one for one in members if one.turning), key=_since):
        if not member.worker.draining or member.turning not in (PREFILL, DECODE):
            said.put(member, "it was taken back")
            continue
        turn += member.well
        why = _in_the_way(member, left, turn > size_of_step(members), now_us, rules)
        if member.inflight_requests:
            if why or not member.well:
                said.gives_up(member, why or "it is unwell")
        elif member.well:
            free.append((member.worker_id, member.worker.role if why else member.turning))
    if rules.apply:
        by_id = {member.worker_id: member for member in members}
        for worker_id, role in verdict.roles.items():
            said.begins(by_id[worker_id], role)
    return RoleStep(said.ops(verdict), tuple(free), tuple(said.told))


def role_taken(
    member: RoleMember, role: str, outcome: Switched, known: OffloadPlan | None, replica: str, now_us: int
) -> RoleStep:
    """Say what a worker is now, by what became of its engine; ask only while it is still turning.

    Args:
        member: The worker, as it is now.
        role: Which its engine was to take: that which it turns to, or its own if it is to stay what it is.
        outcome: What became of it.
        known: The newest plan.
        replica: Who leads.
        now_us: Log time.
    """
    said = _Saying(replica, now_us, known)
    match outcome:
        case Switched.DONE | Switched.EMPTIED:
            said.ends(member, role, emptied=outcome is Switched.EMPTIED)
        case Switched.REFUSED:
            said.gives_up(member, "its engine refuses")
        case Switched.BROKEN:
            said.gives_up(member, "its engine failed half way and must be restarted", broken=True)
        case Switched.LATER:
            return RoleStep()
    return RoleStep(said.ops(None), told=tuple(said.told))


def _since(member: RoleMember) -> tuple[int, str]:
    return member.worker.version[0], member.worker_id


def _in_the_way(
    member: RoleMember, left: Mapping[tuple[str, str], int], too_many: bool, now_us: int, rules: RoleRules
) -> str:
    """Why a worker should stay what it is; empty if it should not."""
    if not rules.apply:
        return "roles are no longer changed"
    if not left[member.group, member.worker.role]:
        return f"nobody else is left to {member.worker.role}"
    if too_many:
        return "too many turn at once"
    if now_us - member.worker.version[0] > rules.drain_s_max * 1e6:
        return f"it did not get free in {rules.drain_s_max:.0f} s"
    return ""


@dataclass(slots=True)
class _Saying:
    """Gathers what to say.

    Attributes:
        told: What happened to which worker.
    """

    replica: str
    now_us: int
    known: OffloadPlan | None
    told: list[tuple[str, str]] = field(default_factory=list)
    _puts: list[Op] = field(default_factory=list)
    _turned: dict[str, str] = field(default_factory=dict)
    _stuck: list[str] = field(default_factory=list)
    _changed: bool = False

    def begins(self, member: RoleMember, role: str) -> None:
        """A worker is to turn."""
        self._changed = True
        self._turned[member.worker_id] = role
        self.put(member, f"drains to {role}", draining=True, turning=role)

    def ends(self, member: RoleMember, role: str, *, emptied: bool) -> None:
        """A worker has a role, its old one or the other. Whether it kept what it held, its engine decides."""
        self._changed = True
        if emptied:
            self._puts.append(Forget(member.worker_id, self.now_us))
        if role == member.worker.role:
            self._stuck.append(member.worker_id)
        self.put(member, f"is to {role} now", role=role)

    def gives_up(self, member: RoleMember, why: str, *, broken: bool = False) -> None:
        """A worker stays what it was, and is left alone for a while."""
        self._changed = True
        self._stuck.append(member.worker_id)
        self.put(member, f"does not turn to {member.turning}: {why}", draining=broken)

    def put(
        self, member: RoleMember, told: str, *, role: str = "", draining: bool = False, turning: str = ""
    ) -> None:
        """Say a worker anew."""
        self.told.append((member.worker_id, told))
        self._puts.append(_put(member.worker, self.replica, self.now_us, role, draining, turning))

    def ops(self, verdict: RoleVerdict | None) -> tuple[Op, ...]:
        """Everything, the plan first: if this replica dies after a part of it, changes keep their dwell."""
        plan = None if verdict is None else verdict.plan(self.known, self.replica, self.now_us)
        if plan is None and self._changed:
            plan = self.known if self.known is not None else OffloadPlan(0, "")
        if plan is None:
            return tuple(self._puts)
        since_us = self.now_us - round(STUCK_S * 1e6)
        stuck = {worker: at_us for worker, at_us in plan.stuck_us.items() if at_us > since_us}
        plan = msgspec.structs.replace(
            plan,
            at_us=max(self.now_us, plan.at_us, (self.known.at_us if self.known is not None else 0) + 1),
            replica=self.replica,
            changed_us=self.now_us if self._changed else plan.changed_us,
            turned=self._turned or plan.turned,
            stuck_us={**stuck, **dict.fromkeys(self._stuck, self.now_us)},
        )
        return (plan, *self._puts)


def _put(worker: Worker, replica: str, now_us: int, role: str, draining: bool, turning: str) -> WorkerPut:
    labels = {name: value for name, value in worker.labels.items() if name != TURNING_LABEL}
    if turning:
        labels[TURNING_LABEL] = turning
    fields = {"draining": draining, "drain_us": 0, "leaving": False, **({"role": role} if role else {})}
    return worker.changed(now_us, replica, labels, **fields)
