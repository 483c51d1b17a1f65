"""Room of a worker: it may be given more now, or the request waits here, where order still counts.

An engine serves its own queue in its own order, and its requests can go nowhere else. So it gets as little as
possible, but never so little that it stands still. A worker *has room* while

    V < target                            prefill reserved there, in seconds, of all replicas
    requests < running_max                the engine runs no more at a time; the next one would wait in it
    tokens held < kv_ratio_max * capacity    likewise

**The target.** A backlog of T predicted seconds takes r*T: an engine prefills several prompts in one step or
on several ranks, or the prediction was too careful. The time until the next request arrives there (log lag,
network, tokeniser) does not shrink with r. So

    target = min(target_s / r, target_s_max)    r = mean of min(1, observed / predicted time to first token)

over requests that found a backlog; the service model learns from those that found none
(`policies.estimates.costs`). Late ones count as 1: an unpredictable engine needs the longer queue, since it
idles when it is early and gains nothing when it is late. All replicas share r (`policies.EarlyRatio`).

**The caps.** Our own count of requests in flight always counts. An engine's report adds unknown load
(`policies.state.slot_registers`), as long as it is fresh: a stale report is ignored, and never stops dispatch
(wire.md 5). Neither does an impossible report: a worker without requests of ours in flight may always be
given one.

The tokens held are limited only where the engine reports them: our own count knows nothing of prefixes that
running requests share, and would leave an agentic fleet half empty.

**Decode workers** are given a request that is prefilled elsewhere, and hold its KV for it alone as soon as it
comes. Their requests in flight by our count will need that room, whether arrived or not, so the count always
limits, and a report can only add to it. There must be room for all of a request at once: a full engine lets
it wait, while the prefill worker keeps its KV (`Admission.lacking`).
"""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from policies.declared import setting
from policies.fleet.fleet import FleetState, Worker
from policies.pricing.views import Slots
from policies.state.load_rows import numbers
from policies.state.ops import EarlyRatio
from radix import COUNT_MAX, parsed_whole

RUNNING_MAX_LABEL = "max_running_requests"
"""Label with the number of requests that a worker runs at a time; preferred to the engine's report."""

RATIO_MIN = 1 / 16
"""Least r: an engine of 16 data-parallel ranks, each with a queue of its own."""

MEMORY = 64
"""Requests over which r is averaged, a guess: one worker's load of a minute, a large fleet's of a second."""

PRIOR = 8
"""Requests in time that r begins with: one early one proves little."""


@dataclass(frozen=True)
class AdmissionRules:
    """Bounds on the load of a worker."""

    backlog_target_s: float = setting(
        0.5,
        "Prefill that a worker is given ahead, in seconds that it really takes; beyond it requests wait "
        "here, where order still counts. Longer than the engine's pause between an answer and the next "
        "request, and than a chunk of short prompts that it prefills together; no longer, since an engine "
        "serves its own queue in its own order.",
        gt=0,
        live=True,
    )
    backlog_target_s_max: float = setting(
        4.0,
        "Upper bound of the same in predicted seconds. Where queues end earlier than predicted (several "
        "data-parallel ranks, prompts prefilled together) the target grows as observed, up to this.",
        flag="backlog-target-max-secs",
        gt=0,
        live=True,
    )
    worker_running_max: int = setting(
        0,
        "Most requests that a worker has in flight, if neither its label max_running_requests nor its engine "
        "says (SGLang does, in its server info; vLLM: --max-num-seqs). 0: no bound.",
        ge=0,
        live=True,
    )
    kv_ratio_max: float = setting(
        0.95,
        "Share of a worker's KV capacity that its running requests may hold, above 0, where its engine "
        "reports it; beyond it the next one would wait in the engine. 1 and more: no bound.",
        flag="kv-usage-max",
        gt=0,
        live=True,
    )
    engine_metrics_interval_s: float = setting(
        2.0,
        "Time between two looks at a busy worker's /metrics, by one of the replicas, in seconds; longer if "
        "one replica would look at more than 50 workers a second. 0: never, and only the gateway's own "
        "requests in flight count.",
        flag="engine-metrics-interval-secs",
        ge=0,
        live=True,
    )
    report_age_s_max: float = setting(
        10.0,
        "Age at which a report of a worker's /metrics is ignored, in seconds. An engine that reports "
        "nothing, or nothing new, never stops dispatch.",
        flag="engine-metrics-age-max-secs",
        gt=0,
        live=True,
    )

    def __post_init__(self) -> None:
        if self.backlog_target_s_max < self.backlog_target_s:
            raise ValueError("backlog_target_s_max must not be below backlog_target_s")


class Admission:
    """Room of the workers.

    Attributes:
        closed: This replica may have no more requests at workers: none has room for it.
    """

    def __init__(self, rules: AdmissionRules, fleet: FleetState) -> None:
        self.closed = False
        self.rules = rules
        self._fleet = fleet
        self._loads, self._reports = fleet.loads, fleet.reports
        self._early = fleet.registers.of(EarlyRatio)
        self._stale_us = 0
        self._followed, self._noted = -1, -1
        """Sum of all revisions, and that of the workers, as of the last look; -1 before any."""
        self._target_s = self._running_max = self._kv_max = np.zeros(0)
        self._target_s_at = self._running_max_at = numbers(np.zeros(0))
        """The first two, to read single numbers."""
        self._classes: dict[str, int] = {}
        self._class = np.zeros(0, dtype=np.intp)
        """By slot, the number of its worker's class; 0 if there is no worker."""
        self._labelled = self._capacity = np.zeros(0)
        """By slot, the bound and capacity that its worker reports; 0 if none."""

    def use(self, rules: AdmissionRules) -> None:
        """Take over other rules."""
        self.rules, self._followed = rules, -1

    # One worker.

    def has_room(self, slot: int, now_us: int, *, queues: bool = False) -> bool:
        """True if a worker may be given more, so that it is neither idle nor has a long queue.

        With ``queues`` its queue may be long.
        """
        self._follow()
        if self.closed:
            return False
        loads, reports = self._loads, self._reports
        if not queues:
            target_s = self._target_s_at[slot]
            # The time that its head had makes the backlog only shorter.
            if loads.backlog_at[0][slot] / 1e6 >= target_s <= loads.backlog_at_s(slot, now_us):
                return False
        requests = loads.inflight_requests_at[slot]
        if not requests:
            return True
        if now_us - reports.said_us_at[slot] <= self._stale_us:
            requests += reports.foreign_requests.item(slot)
            if loads.inflight_tokens.item(slot) + reports.extra_tokens.item(slot) >= self._kv_max.item(slot):
                return False
        return requests < self._running_max_at[slot]

    def below_caps(self, slot: int, now_us: int) -> bool:
        """True if a worker would take one more request into its batch."""
        return self.has_room(slot, now_us, queues=True)

    def target_s(self, slot: int) -> float:
        """Backlog up to which a worker gets more, in predicted seconds."""
        self._follow()
        return self._target_s.item(slot)

    def running_max(self, slot: int) -> float:
        """Most requests that a worker may have in flight; +inf if unknown."""
        self._follow()
        return self._running_max.item(slot)

    def kv_tokens_max(self, slot: int) -> float:
        """Most tokens that its running requests may hold; +inf if unknown."""
        self._follow()
        return self._kv_max.item(slot)

    # Many workers.

    def idle(self, slots: Slots, now_us: int) -> bool:
        """True if one of these workers has nothing to prefill, and would take a request."""
        return len(self.idling(slots, now_us)) > 0

    def idling(self, slots: Slots, now_us: int) -> Slots:
        """Workers among these that have nothing to prefill, and would take a request."""
        free = slots[self._fleet.loads.prefill_us[slots] == 0]
        return self.capped(free, now_us) if len(free) else free

    def with_room(self, slots: Slots, now_us: int) -> Slots:
        """Workers among these that have room; the same array if all have."""
        self._follow()
        room = self._fleet.loads.backlog_s(slots, now_us) < self._target_s[slots]
        room &= self._below_all(slots, now_us)
        return slots if room.all() else slots[room]

    def capped(self, slots: Slots, now_us: int) -> Slots:
        """Workers among these that are below their caps; the same array if all are."""
        below = self._below_all(slots, now_us)
        return slots if below.all() else slots[below]

    # Decode workers.

    def lacking(self, slots: Slots, tokens: float, now_us: int) -> NDArray[np.float64]:
        """Share of its load that must end before each decode worker can take a request of this length.

        0 where there is room, and only there; at most 1.
        """
        self._follow()
        loads, reports = self._fleet.loads, self._fleet.reports
        requests = own = loads.inflight_requests[slots]
        held = loads.inflight_tokens[slots]
        if now_us - reports.newest_us <= self._stale_us:
            fresh = now_us - reports.at_us[slots] <= self._stale_us
            requests = own + np.where(fresh, reports.foreign_requests[slots], 0.0)
            held = held + np.where(fresh, np.maximum(reports.extra_tokens[slots], 0.0), 0.0)
        too_many = requests + 1.0 - self._running_max[slots]
        too_much = held + tokens - self._kv_max[slots]
        full = ((too_many > 0.0) | (too_much > 0.0)) & (own > 0.0)
        if not full.any():
            return np.zeros(len(slots))
        lacking = np.maximum(too_many / np.maximum(requests, 1.0), too_much / np.maximum(held, 1.0))
        return np.where(full, np.minimum(lacking, 1.0), 0.0)

    # Inside.

    def _below_all(self, slots: Slots, now_us: int) -> NDArray[np.bool_]:
        self._follow()
        if self.closed:
            return np.zeros(len(slots), dtype=np.bool_)
        loads, reports = self._fleet.loads, self._fleet.reports
        own = loads.inflight_requests[slots]
        below: NDArray[np.bool_]
        if now_us - reports.newest_us > self._stale_us:
            below = (own == 0) | (own < self._running_max[slots])
            return below
        fresh = now_us - reports.at_us[slots] <= self._stale_us
        requests = own + np.where(fresh, reports.foreign_requests[slots], 0.0)
        tokens = np.where(fresh, loads.inflight_tokens[slots] + reports.extra_tokens[slots], -inf)
        below = (own == 0) | ((requests < self._running_max[slots]) & (tokens < self._kv_max[slots]))
        return below

    def _follow(self) -> None:
        """Follow changes of the rules, the workers, their reports and r."""
        fleet = self._fleet
        # None of them falls: their sum stays only if all stay.
        revisions = fleet.revision + self._early.revision + self._reports.running_max_revision
        if revisions == self._followed:
            return
        rules, rows = self.rules, len(fleet.loads.prefill_us)
        self._note_workers(self._noted, rows)
        self._followed, self._noted = revisions, fleet.revision
        self._stale_us = round(rules.report_age_s_max * 1e6)
        # No step for each worker: r changes several times a second.
        targets_s = [rules.backlog_target_s]
        for worker_class in self._classes:
            ratio = max(fleet.early_ratio(worker_class), RATIO_MIN)
            targets_s.append(min(rules.backlog_target_s / ratio, rules.backlog_target_s_max))
        self._target_s = np.array(targets_s)[self._class]
        exists = self._class > 0
        known = min(len(fleet.reports.running_max), rows)
        running_max = np.full(rows, inf)
        running_max[:known] = fleet.reports.running_max[:known]
        running_max = np.where(self._labelled > 0.0, self._labelled, running_max)
        default = float(rules.worker_running_max) or inf
        self._running_max = np.where(exists & (running_max < inf), running_max, default)
        self._target_s_at, self._running_max_at = numbers(self._target_s), numbers(self._running_max)
        capacity = np.where(self._capacity > 0.0, self._capacity, float(fleet.rules.capacity_tokens))
        kv_max = rules.kv_ratio_max * capacity
        self._kv_max = np.where(exists & (capacity > 0.0), kv_max, inf)

    def _note_workers(self, revision: int, rows: int) -> None:
        """Note the classes, bounds and capacities of workers that changed since a revision."""
        added = rows - len(self._class)
        if added:
            self._class = np.append(self._class, np.zeros(added, dtype=np.intp))
            self._labelled = np.append(self._labelled, np.zeros(added))
            self._capacity = np.append(self._capacity, np.zeros(added))
        for slot in self._fleet.revised(revision):
            worker = self._fleet.in_slot(slot)
            if worker is None:
                self._class[slot] = 0
                continue
            self._class[slot] = self._classes.setdefault(worker.worker_class, len(self._classes) + 1)
            self._labelled[slot] = _labelled_max(worker)
            self._capacity[slot] = worker.capacity_tokens


def _labelled_max(worker: Worker) -> float:
    """Number of requests a worker or rank runs at a time by its label; 0 if it has no usable one."""
    label = parsed_whole(worker.labels.get(RUNNING_MAX_LABEL, ""), COUNT_MAX) or 0
    return float(-(-label // worker.ranks) if worker.rank >= 0 else label)


class EarlyEnds:
    """Learns r of one worker class: the share of the predicted time its queues really take; 1 at first.

    ``weight`` is the number of requests behind it, the prior included; at most `MEMORY`.
    """

    __slots__ = ("ratio", "weight")

    def __init__(self) -> None:
        self.ratio = 1.0
        self.weight = PRIOR

    def go_on_from(self, ratio: float, observations: int) -> None:
        """Continue from the ratio that replicas learned from ``observations`` >= 1 requests."""
        self.ratio = ratio
        self.weight = min(PRIOR + observations, MEMORY)

    def observe(self, predicted_s: float, observed_s: float) -> None:
        """Learn from the predicted (> 0) and observed time to first token behind a backlog."""
        early = min(max(observed_s / predicted_s, RATIO_MIN), 1.0)
        self.weight = min(self.weight + 1, MEMORY)
        self.ratio += (early - self.ratio) / self.weight
