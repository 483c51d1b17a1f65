"""Which worker is probed when, so that slow probes take no place of quick ones. Pure.

    due ──a quick place is free──> young ──ended──────────────────────> due again
     │                              └──after `YOUNG_S`──> old ──ended──┘
     └──was slow, is not well: a slow place is free──────> old

A probe of a worker that does not answer lasts as long as the timeout. If such probes took the same places as
all others, a few hundred dead workers would keep the living from being probed. So a probe holds its quick
place for a second at most: it ends, or it is old. Workers that are not well and were slow the last time do
not get a quick place at all. Old probes are bounded by themselves, as each has a connection. While there are
too many, young ones must keep their places, unless somebody ends an old one (`is_held_up`).

Workers are taken in the order in which they are due. A probe costs O(log workers) here, a change of the fleet
O(workers).
"""

import heapq
from collections.abc import Iterable

YOUNG_S = 1.0
"""How long a probe is young, in seconds. A worker that is well answers within milliseconds."""

FULL_S = 0.05
"""While there is no place, it is seen so often whether there is one, in seconds."""

PLACES = 2048
"""Most probes at a time, where there are files enough: half are for slow ones, an eighth for young ones."""


class Timetable:
    """When workers are due, and which probes are under way.

    Args:
        places: Most probes at a time, at least 16.
    """

    def __init__(self, places: int = PLACES) -> None:
        self._young_max = places // 8
        self._slow_max = places // 2
        self._old_max = places - self._young_max
        self._due_s: dict[str, float] = {}
        self._queues: dict[bool, list[tuple[float, str]]] = {False: [], True: []}
        """Of quick and of slow workers; entries that are not those of `_due_s` any more are skipped."""
        self._slow: set[str] = set()
        self._young: dict[str, float] = {}
        self._old: set[str] = set()

    @property
    def running(self) -> int:
        """Probes that are under way."""
        return len(self._young) + len(self._old)

    def is_running(self, worker_id: str) -> bool:
        """Whether a worker is being probed."""
        return worker_id in self._young or worker_id in self._old

    def keep(self, worker_ids: Iterable[str]) -> None:
        """Forget all workers but these; a probe that is under way still ends."""
        known = set(worker_ids)
        for worker_id in self._due_s.keys() - known:
            del self._due_s[worker_id]
        self._slow &= known

    def plan(self, worker_id: str, due_s: float, *, slow: bool | None = None) -> None:
        """Let a worker be due then, instead of when it was; not while it is being probed.

        Args:
            worker_id: The worker.
            due_s: When.
            slow: Whether it is to take a slow place; None leaves that as it is.
        """
        if slow is not None:
            (self._slow.add if slow else self._slow.discard)(worker_id)
        self._due_s[worker_id] = due_s
        heapq.heappush(self._queues[worker_id in self._slow], (due_s, worker_id))

    def due_s(self, worker_id: str) -> float | None:
        """When a worker is due; None if it is being probed, or unknown."""
        return self._due_s.get(worker_id)

    def begin(self, now_s: float, count: int) -> list[str]:
        """Begin the probes of workers that are due and for which there are places.

        Args:
            now_s: The time.
            count: Of so many at most.

        Returns:
            Their ids; `end` must be called for each.
        """
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
        """Whether a quick worker is due and finds no place because there are too many old probes."""
        quick = self._next(slow=False)
        return (
            quick is not None
            and quick[0] <= now_s
            and len(self._young) >= self._young_max
            and len(self._old) >= self._old_max
            and now_s - next(iter(self._young.values())) >= YOUNG_S
        )

    def end(self, worker_id: str) -> None:
        """A probe has ended: its place is free."""
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
