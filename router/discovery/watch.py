"""The pods of one selection: a watch reports events at once, a list now and then finds the missed ones.

    reconciling:  list ──> merge ──> wait resync_s, less if something is wrong ──> list ...
    watching:     from the list's version ──> events ──> ended, broken, silent ──> from the last version ...
                                                    └──> 410 Gone ──> list first

Both run side by side, so that a slow list delays no event. They are merged by the pods' versions:

    listed, unknown or newer          applied, unless the watch reported its end meanwhile
    known, not listed                 gone, unless it is newer than the list
    found by a list, and still not reported after `LATE_S`    the watch is dead: begin again

Only an event or a whole successful list removes a pod; otherwise pods stay, and `problem` says so.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from radix import parsed_whole
from router.discovery.pods import VERSION_MAX, Pod
from router.discovery.source import ApiFailure, Gone, PodEvent, Source, Trouble

logger = logging.getLogger(__name__)

WATCH_S = (240, 300)
"""Duration of a watch, drawn for each; kube-apiserver's own bounds are twice as long."""

LATE_S = 2.0
"""Seconds after a list in which the watch may still report its findings."""

BACKOFF_S = (1.0, 30.0)
SILENCE_S = 15.0
"""Seconds beyond `WATCH_S` after which a watch is over, even if its connection is open."""

RENEW_AFTER = 3
"""Failures in a row after which certificates and credentials are read again."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Pods of a role (empty if they name it) in a namespace (``*`` for all), by a label selector."""

    cluster: str
    namespace: str
    role: str
    selector: str

    @property
    def scope(self) -> str:
        """Identity of the selection, equal on all replicas."""
        words = "\n".join((self.cluster, self.namespace, self.role, self.selector))
        return hashlib.sha256(words.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.role or 'pods'} {self.selector} in {self.namespace}"


class PodWatch:
    """The pods of one selection.

    `source` is closed when the watch ends. `changed` is called with a pod's uid and state, None if it is
    gone; `listed` after each successful list.

    Attributes:
        listed_s: Time of the last list; None before the first.
        version: Version from which a watch goes on; empty if a list must come first.
        problem: Failure of the list; None for none.
        restarts: Watches that ended before their time.
        missed: Changes that a list found and the watch did not report.
    """

    def __init__(
        self,
        source: Source,
        selection: Selection,
        *,
        changed: Callable[["PodWatch", str, Pod | None], None],
        listed: Callable[["PodWatch"], None],
        resync_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.selection = selection
        self.pods: dict[str, Pod] = {}
        self.listed_s: float | None = None
        self.listed_version = 0
        self.problem: str | None = None
        self.failures: Counter[Trouble] = Counter()
        self.restarts = 0
        self.missed = 0
        self._source = source
        self._changed = changed
        self._listed = listed
        self._resync_s = resync_s
        self._clock = clock
        self.version = ""
        self._relist = asyncio.Event()
        self._version_set = asyncio.Event()
        self._listing = False
        self._empty = False
        self._ended: set[str] = set()
        """Pods that the watch reported as gone while a list was under way."""
        self._unconfirmed: dict[str, int] = {}
        """Versions of pods in the last list (0 if gone) that the watch has not reported."""
        self._caught_up = asyncio.Event()
        """Set when the watch has reported all findings of the last list."""
        self._watch_limit: asyncio.Timeout | None = None

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reconciling(), name=f"list {self.selection}")
                tasks.create_task(self._watching(), name=f"watch {self.selection}")
        finally:
            await self._source.close()

    async def reconcile(self) -> None:
        """List the pods and apply the news; on `ApiFailure` everything stays."""
        selection = self.selection
        self._ended.clear()
        self._listing = True
        try:
            listed = await self._source.list_pods(selection.namespace, selection.selector)
        finally:
            self._listing = False
        first = self.listed_s is None
        self._unconfirmed.clear()
        self._caught_up.clear()
        self.listed_version = parsed_whole(listed.version, VERSION_MAX) or 0
        listed_uids = set()
        for pod in listed.pods:
            listed_uids.add(pod.uid)
            current = self.pods.get(pod.uid)
            if pod.uid not in self._ended and (current is None or _newer(pod, current)):
                self._take(pod)
                self._unconfirmed[pod.uid] = pod.version
        for uid in [uid for uid in self.pods if uid not in listed_uids]:
            if self.pods[uid].version <= self.listed_version:
                self._drop(uid)
                self._unconfirmed[uid] = 0
        if first or not self.version:
            self._unconfirmed.clear()
            self.version = listed.version
            self._version_set.set()
        self.listed_s = self._clock()
        self._succeeded(len(listed_uids))
        self._listed(self)

    async def _reconciling(self) -> None:
        failed = 0
        while True:
            self._relist.clear()
            try:
                await self.reconcile()
                failed = 0
            except ApiFailure as failure:
                failed += 1
                self._failed(failure)
                if failed % RENEW_AFTER == 0:
                    await self._renew()
            except Exception as error:  # noqa: BLE001 - logged by `_crashed`; the top of a loop
                failed += 1
                self._failed(_crashed(error))
                await self._renew()
            wait_s = _backoff_s(failed) if failed else self._resync_s * random.uniform(0.9, 1.1)  # noqa: S311
            if self._unconfirmed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LATE_S):
                        await self._caught_up.wait()
                self._judge_watch()
            try:
                async with asyncio.timeout(wait_s):
                    await self._relist.wait()
            except TimeoutError:
                pass

    async def _watching(self) -> None:
        failed = 0
        while True:
            if not self.version:
                self._version_set.clear()
                await self._version_set.wait()
            begun_s = self._clock()
            try:
                await self._watch_once()
                failed = 0
            except Gone as gone:
                self.version = ""
                self._relist.set()
                self._note_restart(gone)
            except ApiFailure as failure:
                failed += 1
                self._note_restart(failure)
            except Exception as error:  # noqa: BLE001 - likewise
                failed += 1
                self.version = ""  # skip the event that failed: the list has the current state
                self._relist.set()
                self._note_restart(_crashed(error))
            if failed or self._clock() - begun_s < BACKOFF_S[0]:
                # A server that ends each watch at once must not be asked without a pause.
                await asyncio.sleep(_backoff_s(max(failed, 1)))

    async def _watch_once(self) -> None:
        lasts_s = random.randint(*WATCH_S)  # noqa: S311 - it spreads load, and guards nothing
        selection = self.selection
        events = self._source.watch_pods(selection.namespace, selection.selector, self.version, lasts_s)
        try:
            async with asyncio.timeout(lasts_s + SILENCE_S) as self._watch_limit, contextlib.aclosing(events):
                async for event in events:
                    self.apply(event)
        except TimeoutError:
            raise ApiFailure(Trouble.TIMEOUT, "the watch fell silent") from None
        finally:
            self._watch_limit = None

    def apply(self, event: PodEvent) -> None:
        """Apply an event of the watch."""
        pod = event.pod
        self.version = pod.metadata.resource_version or self.version
        if event.kind == "BOOKMARK":
            return
        gone = event.kind == "DELETED"
        version = self._unconfirmed.get(pod.uid)
        if version is not None and (gone or pod.version >= version > 0):
            del self._unconfirmed[pod.uid]
            if not self._unconfirmed:
                self._caught_up.set()
        current = self.pods.get(pod.uid)
        if gone:
            if self._listing:
                self._ended.add(pod.uid)
            if current is not None:
                self._drop(pod.uid)
        elif current is None or _newer(pod, current):
            self._take(pod)

    def _judge_watch(self) -> None:
        """Begin the watch again if it did not report the list's findings."""
        if not self._unconfirmed:
            return
        self.missed += len(self._unconfirmed)
        logger.warning(
            "a watch missed changes of pods, which the list found",
            extra={
                "event": "discovery.missed",
                "selection": str(self.selection),
                "count": len(self._unconfirmed),
            },
        )
        self._unconfirmed.clear()
        self.version = str(self.listed_version or "")
        if self._watch_limit is not None:
            self._watch_limit.reschedule(asyncio.get_running_loop().time())

    def _take(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self._changed(self, pod.uid, pod)

    def _drop(self, uid: str) -> None:
        del self.pods[uid]
        self._changed(self, uid, None)

    def _succeeded(self, count: int) -> None:
        empty = count == 0
        if self.problem is not None or empty != self._empty:
            logger.log(
                logging.INFO if count else logging.WARNING,
                "pods listed" if count else "no pod matches the selector",
                extra={"event": "discovery.listed", "selection": str(self.selection), "pods": count},
            )
        self.problem = None
        self._empty = empty

    def _failed(self, failure: ApiFailure) -> None:
        self.failures[failure.trouble] += 1
        if self.problem != failure.message:
            logger.warning(
                "pods cannot be listed; the workers that are known stay",
                extra={
                    "event": "discovery.failed",
                    "selection": str(self.selection),
                    "trouble": failure.trouble.value,
                    "reason": failure.message,
                },
            )
        self.problem = failure.message

    def _note_restart(self, failure: ApiFailure) -> None:
        self.restarts += 1
        self.failures[failure.trouble] += 1
        logger.info(
            "a watch of pods begins again",
            extra={
                "event": "discovery.watch_restarted",
                "selection": str(self.selection),
                "trouble": failure.trouble.value,
                "reason": failure.message,
            },
        )

    async def _renew(self) -> None:
        try:
            await self._source.renew()
        except ApiFailure as failure:
            self._failed(failure)


def _crashed(error: Exception) -> ApiFailure:
    logger.error("discovery failed inside the gateway", extra={"event": "discovery.crashed"}, exc_info=error)
    return ApiFailure(Trouble.INTERNAL, f"internal error: {type(error).__name__}: {error}"[:300])


def _newer(pod: Pod, current: Pod) -> bool:
    """True if a pod is newer, or at least different if versions are missing."""
    if pod.version and current.version:
        return pod.version > current.version
    return pod != current


def _backoff_s(failed: int) -> float:
    first_s, most_s = BACKOFF_S
    return min(first_s * 2.0 ** min(failed - 1, 10), most_s) * random.uniform(0.75, 1.25)  # noqa: S311
