"""The slow loop: threshold of remote prefill, and roles of the workers at home.

From time to time one replica calls `plan_roles`, which prices the fleet (`policies.disaggregation.optimum`)
on recent requests, the fits of its worker classes and the present capacity of its links. The `OffloadPlan`
goes into the log: the threshold for the roles as they are, at every look, and a step towards the best split,
if that is worth a drain and a cold cache. A step turns one worker, or `SHARE_TURNED` of them, only if

    the best split serves more by `RoleRules.gain_ratio_min`, twice that to undo a recent change
    the last change is older than `RoleRules.dwell_s_min`, and none is under way
    at least `RoleRules.requests_min` requests came
    the stage that is to grow is observed to be busy, and not less than the other

The last checks the model by observation (PrfaaS, arXiv:2604.15039, section 3.4.3): a predicted bottleneck
that idles means that the prices are wrong, or that little comes. No step takes the last worker of a role from
workers that may work together (`RoleMember.group`). `policies.disaggregation.role_turns` turns workers.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Literal

import msgspec
import numpy as np

from policies.declared import setting
from policies.disaggregation.optimum import (
    Curve,
    Optimum,
    RemoteSite,
    Split,
    Stages,
    Throughput,
    ThroughputModel,
    UncachedLengths,
    WorkerClass,
)
from policies.estimates.costs import Floats
from policies.estimates.length_histogram import ROW_TOKENS_MAX
from policies.fleet.fleet import Worker
from policies.fleet.roles import DECODE, PREFILL
from policies.state.ops import OffloadPlan

TURNING_LABEL = "turning"
"""Label of a worker that drains for another role, which it names (`policies.disaggregation.role_turns`)."""

NEVER_TOKENS = 2**53
"""A threshold that no request exceeds."""

SHARE_TURNED = 0.05
"""Share of the workers at home that turn at a time; at least one does."""

STEP_GAIN_MIN = 0.01
"""Least gain of a step, regardless of the steps after it."""

BUSY_RATIO_MIN = 0.5
"""A less busy stage is no bottleneck. [guess] half is far from saturation, where waits begin."""

BUSY_SLACK_RATIO = 0.1
"""The stage that is to grow may be less busy than the other by this: it is measured over seconds."""

QUEUE_S = 1.0
"""Mean backlog, in seconds, of a stage that counts as busy all the time."""

PARTS = 4
"""Bins per row of the histogram, as if lengths were even within it: the threshold must not jump by rows."""

STALE_S = 3600.0
"""Seconds after which a threshold is out of date if too little came to compute another."""

GAIN_RATIO_MAX = 1000.0
"""Reported gain over nothing."""


@dataclass(frozen=True)
class RoleRules:
    """Rules of role changes.

    Attributes:
        drain_s_max: A worker that does not get free in this time keeps its role.
        reversal_s: A change that undoes one of this time must gain twice as much.
        requests_min: Requests in the window below which nothing is judged.
    """

    mode: Literal["off", "recommend", "apply"] = setting(
        "recommend",
        "Use of the best shares of prefill and decode workers, which one replica computes from recent "
        "requests. recommend: GET /roles and a log line tell them. apply: convertible workers (label "
        "convertible=true) also change their roles: they drain, switch and come back. off: nothing is "
        "computed, and the threshold of remote prefill stays as set. The default changes nothing by itself.",
        flag="roles",
        live=True,
    )
    interval_s: float = setting(
        30.0,
        "Time between two looks of the slow loop, in seconds.",
        flag="roles-interval-secs",
        ge=1,
        live=True,
    )
    dwell_s_min: float = setting(
        600.0,
        "Shortest time between two changes of roles, in seconds. Much longer than a drain and the warm-up of "
        "a cold cache.",
        flag="roles-dwell-secs-min",
        ge=0,
        live=True,
    )
    gain_ratio_min: float = setting(
        0.05,
        "Least predicted gain in requests a second for which roles change, as a share: 0.05 is 5 %. Above "
        "the model's own error, so that noise changes nothing.",
        flag="roles-gain-min",
        ge=0,
        live=True,
    )
    drain_s_max: float = 900.0
    reversal_s: float = 3600.0
    requests_min: int = 200

    @property
    def apply(self) -> bool:
        """True if roles change, and are not only recommended."""
        return self.mode == "apply"


@dataclass(frozen=True, slots=True)
class RoleMember:
    """A worker that prefills or decodes.

    ``site`` is empty at home; members of one ``group`` may work together on a request; a ``well`` one can be
    sent requests. ``held_tokens`` are believed to be in its cache.
    """

    worker: Worker
    site: str = ""
    group: str = ""
    well: bool = True
    convertible: bool = False
    inflight_requests: int = 0
    held_tokens: float = 0.0

    @property
    def worker_id(self) -> str:
        """Id of the worker."""
        return self.worker.worker_id

    @property
    def home(self) -> bool:
        """True if it stands where requests are decoded."""
        return not self.site

    @property
    def turning(self) -> str:
        """Role that it drains for; empty if it does not."""
        return self.worker.labels.get(TURNING_LABEL, "")

    @property
    def serves(self) -> bool:
        """True if it takes requests in its role."""
        return self.well and not self.worker.draining and self.worker.role in (PREFILL, DECODE)


@dataclass(frozen=True, slots=True)
class StageLoad:
    """Load of both stages at home.

    ``prefill_ratio`` is the prefill placed over the last seconds, over capacity; ``prefill_backlog_s`` the
    mean backlog; ``decode_ratio`` the requests that decode, over those that may together.
    """

    prefill_ratio: float
    prefill_backlog_s: float
    decode_ratio: float

    def busy_ratio(self, role: str) -> float:
        """Load of the stage of a role; 1 and more is a bottleneck."""
        if role == DECODE:
            return self.decode_ratio
        return max(self.prefill_ratio, min(self.prefill_backlog_s / QUEUE_S, 1.0))

    def bears_out(self, role: str) -> bool:
        """True if the stage of a role is observed to need more workers."""
        busy, other = self.busy_ratio(role), self.busy_ratio(_other(role))
        return busy >= BUSY_RATIO_MIN and busy >= other - BUSY_SLACK_RATIO


@dataclass(frozen=True, slots=True)
class RoleDemand:
    """Demand of late and its prices, of one worker by class; KV bytes by length.

    A class without any knowledge of decode has no rate; ``link_bytes_per_s`` is by site at the far end.
    """

    lengths: UncachedLengths
    prefill_s: Mapping[str, Curve]
    decode_per_s: Mapping[str, float]
    link_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    kv_bytes: Curve = np.zeros_like
    load: StageLoad = StageLoad(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class RoleVerdict:
    """Findings, whether anything changes or not.

    Attributes:
        now: Best throughput with the roles as they are; None if unknown.
        best: Best split; None if nothing is known of decode.
        roles: Workers that should turn now, and their new roles.
        needed_ratio: Relative gain that the best split needs.
        wait_s: Seconds until anything may change.
        forgets: True if the former plan no longer holds, though nothing else is known.
    """

    reason: str
    now: Throughput | None = None
    best: Optimum | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    gain_ratio: float = 0.0
    needed_ratio: float = 0.0
    wait_s: float = 0.0
    forgets: bool = False

    def plan(self, current: OffloadPlan | None, replica: str, now_us: int) -> OffloadPlan | None:
        """Plan for the log; it continues the current one's memory of changes. None if there is none."""
        now, best = self.now, self.best
        base = current if current is not None else OffloadPlan(0, "")
        if now is None and (not self.forgets or base.threshold_tokens < 0):
            return None
        plan = OffloadPlan(
            max(now_us, base.at_us + 1),
            replica,
            roles=dict(self.roles),
            gain_ratio=self.gain_ratio,
            reason=self.reason,
            changed_us=base.changed_us,
            turned=base.turned,
            stuck_us=base.stuck_us,
        )
        if now is None:
            return plan
        bounded = isfinite(now.requests_per_s)
        return msgspec.structs.replace(
            plan,
            threshold_tokens=round(now.threshold_tokens) if isfinite(now.threshold_tokens) else NEVER_TOKENS,
            prefill=best.split.prefill_workers if best is not None else 0,
            decode=best.split.decode_workers if best is not None else 0,
            requests_per_s=now.requests_per_s if bounded else 0.0,
            remote_ratio=now.remote_ratio,
            egress_bytes_per_s=now.egress_bytes_per_s if bounded else 0.0,
        )


SWITCHED_OFF = RoleVerdict("roles.mode is off", forgets=True)


def live_lengths(requests: Floats, cached_tokens: Floats) -> tuple[UncachedLengths, Floats]:
    """Bins of the histogram's rows of requests and cached tokens, and the mean cached tokens in each bin."""
    ends = np.array(ROW_TOKENS_MAX, dtype=np.float64)
    starts = np.concatenate([[0.0], ends[:-1]])
    widths = ((ends - starts) / PARTS)[:, None]
    bounds = starts[:, None] + widths * np.arange(1, PARTS + 1)
    means = np.divide(cached_tokens, requests, out=np.zeros_like(requests), where=requests > 0)
    lengths = UncachedLengths(
        (bounds - widths / 2).reshape(-1), np.repeat(requests / PARTS, PARTS), bounds.reshape(-1)
    )
    return lengths, np.repeat(means, PARTS)


def plan_roles(
    demand: RoleDemand,
    members: Sequence[RoleMember],
    current: OffloadPlan | None,
    now_us: int,
    rules: RoleRules = RoleRules(),
) -> RoleVerdict:
    """Judge the roles of the members, and choose the changes for now; ``current`` is the newest plan."""
    total = float(demand.lengths.requests.sum())
    if total < rules.requests_min or not total:
        stale = current is not None and now_us - current.at_us > STALE_S * 1e6
        return RoleVerdict(f"{total:.0f} requests in the window are too few to judge by", forgets=stale)
    fleet = _Fleet.of(demand, members)
    if fleet.empty:
        return RoleVerdict("no worker prefills or decodes here")
    now = fleet.model.best([fleet.split]).throughput
    if not fleet.decode_known:
        return RoleVerdict("nothing is known of decode yet, so only the threshold is worked out", now)
    best = fleet.model.best()
    gain_ratio = _gain(best.throughput, now)
    found = RoleVerdict("", now, best, gain_ratio=gain_ratio)
    if any(member.turning and member.well for member in members):
        return replace(found, reason="workers are turning")
    stuck = current.stuck_us if current is not None else {}
    step = fleet.step(lambda member: member.worker_id not in stuck)
    if step is None:
        return replace(found, reason="the roles are the best that can be")
    roles, serves = step
    role = next(iter(roles.values()))
    needed = rules.gain_ratio_min * (1 + _undoes(role, current, now_us, rules))
    changed_us = current.changed_us if current is not None else 0
    wait_s = max(0.0, rules.dwell_s_min - (now_us - changed_us) / 1e6) if changed_us else 0.0
    found = replace(found, needed_ratio=needed, wait_s=wait_s)
    rates = f"{best.throughput.requests_per_s:.3g} requests/s instead of {now.requests_per_s:.3g}"
    counts = f"{best.split.prefill_workers} to prefill and {best.split.decode_workers} to decode"
    if gain_ratio < needed or _gain(serves, now) < STEP_GAIN_MIN:
        return replace(found, reason=f"no change gains enough: {counts} would serve {rates}")
    if not demand.load.bears_out(role):
        busy, other = (demand.load.busy_ratio(each) for each in (role, _other(role)))
        return replace(
            found,
            reason=f"the model asks for more {role} workers, but they are busy for {busy:.0%} of the time "
            f"and the others for {other:.0%}",
        )
    if wait_s:
        return replace(found, reason=f"the last change is {rules.dwell_s_min - wait_s:.0f} s old")
    return replace(found, reason=f"{len(roles)} should {role}: {counts} serve {rates}", roles=roles)


def size_of_step(members: Sequence[RoleMember]) -> int:
    """Most workers that turn at a time."""
    return max(1, round(SHARE_TURNED * sum(member.home for member in members)))


class _Fleet:
    """Prefill and decode workers by class, and the throughput model of their demand."""

    def __init__(self, demand: RoleDemand, home: list[RoleMember], away: list[RoleMember]) -> None:
        self._home = home
        self.empty = not home
        self._classes = sorted({member.worker.worker_class for member in home})
        self.decode_known = all(name in demand.decode_per_s for name in self._classes)
        counts = Counter(
            (member.worker.worker_class, member.convertible or member.worker.role) for member in home
        )
        classes = [
            WorkerClass(
                demand.prefill_s[name],
                demand.decode_per_s[name] if self.decode_known else inf,
                counts[name, PREFILL],
                counts[name, DECODE],
                counts[name, True],
            )
            for name in self._classes
        ]
        sites = []
        for site in sorted({member.site for member in away}):
            there = Counter(member.worker.worker_class for member in away if member.site == site)
            workers = [(count, demand.prefill_s[name]) for name, count in sorted(there.items())]
            sites.append(RemoteSite(workers, demand.link_bytes_per_s.get(site, 0.0)))
        self._counts = Counter((member.worker.worker_class, member.worker.role) for member in home)
        self.split = self._split(self._counts)
        self.model = ThroughputModel(demand.lengths, Stages(classes, sites, demand.kv_bytes))

    @classmethod
    def of(cls, demand: RoleDemand, members: Sequence[RoleMember]) -> "_Fleet":
        """Fleet of the members that serve; a turning one counts as if it had turned."""
        serving = [member if member.serves else _turned(member) for member in members]
        serving = [member for member in serving if member.serves]
        home = [member for member in serving if member.home]
        return cls(demand, home, [one for one in serving if not one.home and one.worker.role == PREFILL])

    def step(self, may_turn: Callable[[RoleMember], bool]) -> tuple[dict[str, str], Throughput] | None:
        """Best step: new roles by worker, and the throughput then; None if none gains."""
        best: tuple[dict[str, str], Throughput] | None = None
        size = size_of_step(self._home)
        for name in self._classes:
            for role in (PREFILL, DECODE):
                turned = list(self._spare(name, _other(role), may_turn))[:size]
                # A large step may go too far where a small one does not.
                for count in sorted({min(1, len(turned)), len(turned)} - {0}):
                    serves = self._after(name, count, role)
                    if best is None or serves.requests_per_s > best[1].requests_per_s:
                        best = {member.worker_id: role for member in turned[:count]}, serves
        now = self.model.best([self.split]).throughput
        return best if best is not None and _gain(best[1], now) > 0 else None

    def _spare(self, name: str, role: str, may_turn: Callable[[RoleMember], bool]) -> Iterator[RoleMember]:
        """Workers of a class and role that may turn, the least loss first."""
        left = Counter(member.group for member in self._home if member.worker.role == role)
        ours = [
            member
            for member in self._home
            if member.convertible and member.worker.role == role and member.worker.worker_class == name
        ]
        for member in sorted(ours, key=_loses):
            if left[member.group] > 1 and may_turn(member):
                left[member.group] -= 1
                yield member

    def _after(self, name: str, count: int, role: str) -> Throughput:
        """Throughput after ``count`` workers of a class have turned to a role."""
        counts = self._counts.copy()
        counts[name, role] += count
        counts[name, _other(role)] -= count
        return self.model.best([self._split(counts)]).throughput

    def _split(self, counts: Counter[tuple[str, str]]) -> Split:
        return Split(
            tuple(counts[name, PREFILL] for name in self._classes),
            tuple(counts[name, DECODE] for name in self._classes),
        )


def _loses(member: RoleMember) -> tuple[int, float, str]:
    """Sort key by loss: an idle worker drains soon, one with little cache loses little."""
    return member.inflight_requests, member.held_tokens, member.worker_id


def _turned(member: RoleMember) -> RoleMember:
    if not member.turning:
        return member
    return replace(member, worker=replace(member.worker, role=member.turning, draining=False))


def _other(role: str) -> str:
    return DECODE if role == PREFILL else PREFILL


def _gain(then: Throughput, now: Throughput) -> float:
    if then.requests_per_s == now.requests_per_s:
        return 0.0
    if not now.requests_per_s:
        return GAIN_RATIO_MAX
    return min(then.requests_per_s / now.requests_per_s - 1.0, GAIN_RATIO_MAX)


def _undoes(role: str, current: OffloadPlan | None, now_us: int, rules: RoleRules) -> bool:
    if current is None or now_us - current.changed_us > rules.reversal_s * 1e6:
        return False
    return _other(role) in current.turned.values()
