"""Keeps the fleet's workers as the pods are; `router.app` starts `Discovery.run`.

Every event of a pod marks it; marked pods are settled at once (`router.discovery.settling`), all pods of a
selection after each of its lists, and pods that wait every `TICK_S`. Operators' changes are in the shared
log, so the first round waits for it up to `WARM_S`.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from router.discovery.pods import Pod, PodRules
from router.discovery.settling import Settling
from router.discovery.sighting import Sighting
from router.discovery.source import Source, Trouble
from router.discovery.watch import PodWatch, Selection
from router.fleet import Core
from router.fleet.discovered import note_of
from router.metric_families import DISCOVERY_LIST_AGE, DISCOVERY_PODS
from router.metrics import Sample

logger = logging.getLogger(__name__)

TICK_S = 1.0

BATCH_PODS = 50
"""Pods settled before the loop may turn: about 2 ms."""

WARM_S = 10.0
"""Seconds for which the first workers wait for the shared log."""

LATE_S = 60.0
"""Seconds beyond twice its interval after which a missing list is a problem."""


class Discovery:
    """The pods of all selections, and their workers."""

    def __init__(
        self,
        watched: Sequence[tuple[Selection, Source]],
        rules: PodRules,
        core: Core,
        *,
        resync_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.watches = [
            PodWatch(
                source, selection, changed=self._changed, listed=self._listed, resync_s=resync_s, clock=clock
            )
            for selection, source in watched
        ]
        self.sightings: dict[str, Sighting] = {}
        self.first_settled = asyncio.Event()
        self._fleet = core.fleet
        self._registry = core.registry
        self._status = core.log.status
        self._was_warm = False
        self._resync_s = resync_s
        self.clock = clock
        self._scopes = frozenset(watch.selection.scope for watch in self.watches)
        self._marked: dict[str, None] = {}
        self._unswept: set[PodWatch] = set()
        self._due: dict[str, float] = {}
        """Times when waiting pods are settled again."""
        self._wake = asyncio.Event()
        self._settling = Settling(
            self.sightings, self._scopes, rules, core, mark=self._mark, later=self._later, clock=clock
        )

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self.watches:
                tasks.create_task(watch.run(), name=f"pods {watch.selection}")
            tasks.create_task(self._acting(), name="workers of pods")

    def sees(self, url: str) -> bool:
        """Return True if a selected pod claims a worker at a URL."""
        return self._settling.sees(url)

    @property
    def problem(self) -> str | None:
        """Reason why changes of pods may be missed; None for none."""
        for watch in self.watches:
            if watch.problem is not None:
                return f"{watch.selection}: {watch.problem}"
            age_s = 0.0 if watch.listed_s is None else self.clock() - watch.listed_s
            if age_s > 2 * self._resync_s + LATE_S:
                return f"{watch.selection}: not listed for {age_s:.0f} s"
        return None

    def list_age_s(self) -> float | None:
        """Age of the oldest of the newest lists; None before the first."""
        listed = [watch.listed_s for watch in self.watches if watch.listed_s is not None]
        return self.clock() - min(listed) if len(listed) == len(self.watches) else None

    def states(self) -> Counter[str]:
        """Pods by state: ``used``, or the reason why not."""
        return Counter(
            "used" if sighting.refused is None else sighting.refused.reason.value
            for sighting in self.sightings.values()
        )

    def failures(self) -> Counter[Trouble]:
        """Failed requests to the API server since the start, by kind."""
        return sum((Counter(watch.failures) for watch in self.watches), Counter())

    def samples(self) -> Iterator[Sample]:
        """Metrics at a scrape."""
        for state, count in sorted(self.states().items()):
            yield DISCOVERY_PODS, (state,), count
        age_s = self.list_age_s()
        if age_s is not None:
            yield DISCOVERY_LIST_AGE, (), age_s

    # Calls of the watches

    def _changed(self, watch: PodWatch, uid: str, pod: Pod | None) -> None:
        sighting = self.sightings.get(uid)
        if pod is not None:
            if sighting is None:
                sighting = self.sightings[uid] = Sighting(pod, set())
            sighting.selections.add(watch.selection)
            if pod.version >= sighting.pod.version:
                sighting.follow(pod, self.clock())
        elif sighting is not None:
            sighting.selections.discard(watch.selection)
        self._mark(uid)

    def _listed(self, watch: PodWatch) -> None:
        self._unswept.add(watch)
        self._wake.set()

    def _mark(self, uid: str) -> None:
        self._marked[uid] = None
        self._wake.set()

    def _later(self, uid: str, due_s: float) -> None:
        self._due[uid] = min(due_s, self._due.get(uid, due_s))

    # Settling

    async def _acting(self) -> None:
        await self._until_warm()
        while True:
            try:
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.settle()

    async def _until_warm(self) -> None:
        try:
            async with asyncio.timeout(WARM_S):
                while not self._status().ready:  # noqa: ASYNC110 - state without a signal
                    await asyncio.sleep(0.02)
        except TimeoutError:
            logger.warning(
                "workers are added before the shared log was read", extra={"event": "discovery.cold"}
            )

    async def settle(self) -> None:
        """Settle all marked pods."""
        now_s, added = self.clock(), self._settling.added
        listed = [watch for watch in self.watches if watch.listed_s is not None]
        for uid in [uid for uid, due_s in self._due.items() if due_s <= now_s]:
            del self._due[uid]
            self._marked[uid] = None
        if self._status().ready and not self._was_warm:
            # The log may contradict operations published without it.
            self._was_warm = True
            self._unswept.update(listed)
        while self._unswept:
            self._sweep(self._unswept.pop())
        while self._marked:
            for uid in list(self._marked)[:BATCH_PODS]:
                del self._marked[uid]
                self._settle(uid)
            await asyncio.sleep(0)
        if self._settling.added != added:
            self._registry.all()  # a read makes it follow the fold
        if len(listed) == len(self.watches):
            self.first_settled.set()

    def _sweep(self, watch: PodWatch) -> None:
        for worker in self._fleet.workers():
            note = note_of(worker.labels)
            if note is None:
                continue
            sighting = self.sightings.get(note.uid)
            if sighting is not None:
                sighting.urls.add(worker.url)
            elif note.scope == watch.selection.scope and note.version <= watch.listed_version:
                self._settling.remove(worker, "its pod is gone")
        self._marked.update(dict.fromkeys(watch.pods))

    def _settle(self, uid: str) -> None:
        sighting = self.sightings.get(uid)
        if sighting is None:
            return
        if sighting.selections:
            self._settling.settle(sighting)
            return
        try:
            self._settling.withdraw(sighting, sighting.urls | sighting.claims.keys(), "its pod is gone")
        except Exception:
            logger.exception(
                "a pod that is gone could not be taken in",
                extra={"event": "discovery.crashed", "pod": sighting.pod.name},
            )
        del self.sightings[uid]
        self._due.pop(uid, None)
