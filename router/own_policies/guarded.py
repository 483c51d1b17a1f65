"""A user's policy while the gateway decides: timed in each decision, and switched off when it fails.

    in use ── raises, answers nonsense, or is late too often ──> off, until the replica restarts
      │                                                           │
      └── its costs                                               └── the fallback's costs, from now on

The decision in which it fails is taken by the fallback, so no request is lost. A decision blocks the event
loop, so a policy that is late delays every stream: it is off after `LATE_MAX` late decisions (each timely one
takes `_FORGIVEN` of one back), or at once after one that takes `FAR_TOO_LATE` budgets. A policy that never
returns cannot be stopped from inside; the liveness probe restarts such a replica.

Each replica judges by itself, so a policy may be off in one of them only: the alert names it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from policies import Candidates, Floats, Policy, RequestView, is_own, make_policy
from router.errors import SettingsError
from router.own_policies.loading import NotLoaded, load_rule, rules_of, told

if TYPE_CHECKING:
    from router.settings import PlacementSettings, Settings

logger = logging.getLogger(__name__)

LATE_MAX = 10.0
"""Late decisions before a policy is off. [guess] One may be a page fault, ten in a row are the policy."""

_FORGIVEN = 0.01
"""Share of its decisions in which a policy may be late: the budget bounds the 99th percentile."""

FAR_TOO_LATE = 100.0
"""Multiple of the budget, 0.1 s by default, at which one decision turns a policy off: all streams stall."""


class FailureReason(StrEnum):
    """Reason why a policy was switched off; a label of metrics."""

    RAISED = "raised"
    LATE = "late"


@dataclass(slots=True)
class Record:
    """Use of one policy in this process; ``off`` is empty while it is in use, else the reason in words."""

    name: str
    decisions: int = 0
    late: int = 0
    seconds: float = 0.0
    seconds_max: float = 0.0
    late_debt: float = 0.0
    off: str = ""
    reason: FailureReason | None = None


class OwnPolicies:
    """The users' policies that one process has loaded, and how they do.

    ``switched_off`` is called with the name of a policy when it fails, inside a decision: it must only note
    it.
    """

    def __init__(
        self,
        rules: "PlacementSettings",
        switched_off: Callable[[str], None] = lambda _: None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Load the policies that the settings name; raise NotLoaded if one cannot be used."""
        self.records: Mapping[str, Record] = {name: Record(name) for name in named(rules)}
        for name in self.records:
            load_rule(name)
        self.switched_off = switched_off
        self._fallback = make_policy(rules.own_policy_fallback)
        self._budget_s = rules.own_policy_budget_us / 1e6
        self._clock_s = clock_s

    def make(self, name: str, options: Mapping[str, float]) -> Policy:
        """Make a policy of the registry, or a guarded one of a user; the fallback for one that is off.

        Raises:
            ValueError: It is not loaded, or an option is unknown or out of range.
        """
        if not is_own(name):
            return make_policy(name, options)
        record = self.records.get(name)
        if record is None:
            raise ValueError(self._unknown(name))
        made = make_policy(name, options, rules_of(name))
        if record.off:
            return self._fallback
        return Policy(
            name, _Guarded(self, record, made).costs, made.uses_cache, None, made.unit, made.left_out
        )

    def is_off(self, name: str) -> bool:
        """True if a user's policy was switched off."""
        record = self.records.get(name)
        return record is not None and bool(record.off)

    def problems(self, settings: "Settings") -> list[str]:
        """Return why settings name policies that are not loaded here, or options that they do not take."""
        rules, problems = settings.placement, []
        for key, name, options in chosen(rules):
            if name not in self.records:
                problems.append(f"placement.{key}: {self._unknown(name)}")
                continue
            try:
                make_policy(name, options, rules_of(name))
            except ValueError as error:
                problems.append(f"placement.{key}: {error}")
        return problems

    def troubles(self) -> list[str]:
        """Return a sentence for each policy that is off."""
        return [
            f"policy {record.name} is off, and {self._fallback.name} decides: {record.off}"
            for record in self.records.values()
            if record.off
        ]

    def described(self) -> list[dict[str, object]]:
        """Return the policies as JSON."""
        return [
            {
                "name": record.name,
                "state": "off" if record.off else "in_use",
                "why_off": record.off or None,
                "fallback": self._fallback.name,
                "decisions": record.decisions,
                "late": record.late,
                "budget_us": round(self._budget_s * 1e6),
                "mean_us": round(record.seconds / record.decisions * 1e6, 1) if record.decisions else None,
                "max_us": round(record.seconds_max * 1e6, 1),
            }
            for record in self.records.values()
        ]

    def _unknown(self, name: str) -> str:
        loaded = ", ".join(self.records) or "none"
        return (
            f"policy {name[:100]!r} was not loaded when this replica started (loaded: {loaded}); name it in "
            "placement.own_policies and restart"
        )


class _Guarded:
    """One policy with its options."""

    __slots__ = ("_home", "_policy", "_record")

    def __init__(self, home: OwnPolicies, record: Record, policy: Policy) -> None:
        self._home, self._record, self._policy = home, record, policy

    def costs(self, request: RequestView, candidates: Candidates) -> Floats:
        """Ask the policy, or the fallback if it is off or fails now."""
        home, record = self._home, self._record
        if record.off:
            return home._fallback.costs(request, candidates)
        began_s = home._clock_s()
        try:
            costs = self._policy.costs(request, candidates)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
            self._switch_off(FailureReason.RAISED, f"it failed: {told(error)}", error)
            return home._fallback.costs(request, candidates)
        took_s = home._clock_s() - began_s
        record.decisions += 1
        record.seconds += took_s
        record.seconds_max = max(record.seconds_max, took_s)
        self._judge(took_s, home._budget_s)
        return costs

    def _judge(self, took_s: float, budget_s: float) -> None:
        record = self._record
        if took_s <= budget_s:
            record.late_debt = max(record.late_debt - _FORGIVEN, 0.0)
            return
        record.late += 1
        record.late_debt += 1.0
        if record.late_debt >= LATE_MAX or took_s > FAR_TOO_LATE * budget_s:
            self._switch_off(
                FailureReason.LATE,
                f"{record.late} of its {record.decisions} decisions took longer than {budget_s * 1e6:.0f} us,"
                f" the last {took_s * 1e6:.0f} us",
            )

    def _switch_off(self, reason: FailureReason, why: str, error: BaseException | None = None) -> None:
        record = self._record
        record.off, record.reason = why, reason
        logger.error(
            "a policy of your own is off",
            exc_info=error,
            extra={"event": "policy.off", "policy": record.name, "reason": reason.value, "why": why},
        )
        self._home.switched_off(record.name)


def chosen(rules: "PlacementSettings") -> Iterable[tuple[str, str, Mapping[str, float]]]:
    """Yield the users' policies that settings choose: name of the setting, of the policy, and its options."""
    for key, name in (("policy", rules.policy), ("prefill_policy", rules.prefill_policy or "")):
        if is_own(name):
            yield key, name, rules.options_of(name)
    if is_own(rules.shadow_policy):
        yield "shadow_policy", rules.shadow_policy, rules.shadow_policy_options


def named(rules: "PlacementSettings") -> list[str]:
    """Return the users' policies that settings name, each once."""
    return list(dict.fromkeys([*(name for _, name, _ in chosen(rules)), *rules.own_policies]))


def check_own_policies(settings: "Settings") -> None:
    """Load the policies that the settings name; raise SettingsError if one cannot be used."""
    problems = []
    for name in named(settings.placement):
        try:
            load_rule(name)
        except NotLoaded as error:
            problems.append(f"placement: {error}")
    problems = problems or OwnPolicies(settings.placement).problems(settings)
    if problems:
        raise SettingsError(problems)
