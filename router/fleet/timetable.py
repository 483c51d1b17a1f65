"""Schedule of probes, so that slow probes take no place of quick ones. Pure.

    due ──a quick place is free──> young ──ended──────────────────────> due again
     │                              └──after `YOUNG_S`──> old ──ended──┘
     └──was slow, is unhealthy: a slow place is free─────> old

A probe of a worker that does not answer lasts for the timeout; a few hundred dead workers would keep the
living from being probed. So a probe is young for a second at most. Old probes have a bound of their own;
beyond it young ones keep their places, unless an old one is ended (`is_held_up`). Workers are taken in the
order in which they are due. A probe costs O(log workers), a change of the fleet O(workers).
"""

import heapq
from collections.abc import Iterable

YOUNG_S = 1.0
"""Seconds for which a probe is young. A healthy worker answers within milliseconds."""

FULL_S = 0.05
"""Seconds between two looks for a place while there is none."""

PLACES = 2048
"""Most probes at a time, with files enough: half for slow ones, an eighth for young ones."""


class Timetable:
    """Due times of workers, and probes under way; at most `places` (16 or more) probes at a time."""

    def __init__(self, places: int = PLACES) -> None:
        self._young_max = places // 8
        self._slow_max = places // 2
        self._old_max = places - self._young_max
        self._due_s: dict[str, float] = {}
        self._queues: dict[bool, list[tuple[float, str]]] = {False: [], True: []}
        """Quick and slow workers; entries that differ from `_due_s` are skipped."""
        self._slow: set[str] = set()
        self._young: dict[str, float] = {}
        self._old: set[str] = set()

    def is_running(self, worker_id: str) -> bool:
        """Return True while a worker is being probed."""
        return worker_id in self._young or worker_id in self._old

    def keep(self, worker_ids: Iterable[str]) -> None:
        """Forget all other workers; their probes under way still end."""
        current = set(worker_ids)
        for worker_id in self._due_s.keys() - current:
            del self._due_s[worker_id]
        self._slow &= current

    def plan(self, worker_id: str, due_s: float, *, slow: bool | None = None) -> None:
        """Set when a worker is due; not while it is being probed. `slow` None leaves its kind of place."""
        if slow is not None:
            (self._slow.add if slow else self._slow.discard)(worker_id)
        self._due_s[worker_id] = due_s
        heapq.heappush(self._queues[worker_id in self._slow], (due_s, worker_id))

    def due_s(self, worker_id: str) -> float | None:
        """Return when a worker is due; None while it is probed or unknown."""
        return self._due_s.get(worker_id)

    def begin(self, now_s: float, count: int) -> list[str]:
        """Begin due probes, at most `count`, that have places; `end` must be called for each id."""
        self._age(now_s)
        begun: list[str] = []
        for slow, queue in self._queues.items():
            while len(begun) < count and (entry := self._next(slow)) is not None and entry[0] <= now_s:
                if slow and len(self._old) >= self._slow_max:
                    break
                if not slow and len(self._young) >= self._young_max:
                    break
                heapq.heappop(queue)
                worker_id = entry[1]
                del self._due_s[worker_id]
                if slow:
                    self._old.add(worker_id)
                else:
                    self._young[worker_id] = now_s
                begun.append(worker_id)
        return begun

    def is_held_up(self, now_s: float) -> bool:
        """Return True if a quick worker is due and too many old probes leave it no place."""
        quick = self._next(slow=False)
        return (
            quick is not None
            and quick[0] <= now_s
            and len(self._young) >= self._young_max
            and len(self._old) >= self._old_max
            and now_s - next(iter(self._young.values())) >= YOUNG_S
        )

    def end(self, worker_id: str) -> None:
        """Free the place of an ended probe."""
        self._young.pop(worker_id, None)
        self._old.discard(worker_id)

    def wait_s(self, now_s: float, most_s: float) -> float:
        """Return how long nothing can be begun, as far as is known now; at most ``most_s``."""
        self._age(now_s)
        wait_s = most_s
        full_s = now_s + FULL_S
        quick, slow = self._next(slow=False), self._next(slow=True)
        if quick is not None:
            free = len(self._young) < self._young_max
            wait_s = min(wait_s, (quick[0] if free else max(quick[0], full_s)) - now_s)
        if slow is not None:
            free = len(self._old) < self._slow_max
            wait_s = min(wait_s, (slow[0] if free else max(slow[0], full_s)) - now_s)
        return max(wait_s, 0.0)

    def _age(self, now_s: float) -> None:
        while self._young and len(self._old) < self._old_max:
            worker_id, begun_s = next(iter(self._young.items()))
            if now_s - begun_s < YOUNG_S:
                return
            del self._young[worker_id]
            self._old.add(worker_id)

    def _next(self, slow: bool) -> tuple[float, str] | None:
        queue = self._queues[slow]
        while queue:
            due_s, worker_id = queue[0]
            if self._due_s.get(worker_id) == due_s and (worker_id in self._slow) is slow:
                return queue[0]
            heapq.heappop(queue)
        return None
