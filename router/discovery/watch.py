"""Follows the pods of one selection: a watch tells what happens at once, a list now and then what it missed.

    reconciling:  list ──> merge ──> wait resync_s, less if something is wrong ──> list ...
    watching:     from the list's version ──> events ──> ended, broken, silent ──> from the last version ...
                                                    └──> 410 Gone ──> list first

Both go on side by side, so that a slow list delays no event. What they know is merged by the pods' versions:

    listed, unknown or newer          taken over, unless the watch said meanwhile that it is gone
    known, not listed                 gone, unless it is newer than the list
    found by a list, and the watch still does not say so after `LATE_S`    the watch is dead: begin anew

A pod is only ever taken away by an event or by a whole list that succeeded. While neither comes, everything
stays as it was, and `problem` says so.
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
"""When the server shall end a watch, drawn anew for each; kube-apiserver's own bounds are twice as long."""

LATE_S = 2.0
"""How long after a list the watch may still say what the list found."""

BACKOFF_S = (1.0, 30.0)
SILENCE_S = 15.0
"""After `WATCH_S` and this a watch is over, whether its connection says so or not."""

RENEW_AFTER = 3
"""Failures in a row after which certificates and credentials are read again."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Pods of one role in one namespace.

    Attributes:
        cluster: Where the API server is.
        namespace: Its name, or ``*`` for all.
        role: Of the workers; empty if the pods say it themselves.
        selector: Of labels, as Kubernetes writes it.
    """

    cluster: str
    namespace: str
    role: str
    selector: str

    @property
    def scope(self) -> str:
        """The same for replicas that select the same, and only for them."""
        words = "\n".join((self.cluster, self.namespace, self.role, self.selector))
        return hashlib.sha256(words.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.role or 'pods'} {self.selector} in {self.namespace}"


class PodWatch:
    """The pods of one selection.

    Args:
        source: Asked for them; closed when the watch ends, and opens again by itself if it goes on.
        selection: Which.
        changed: Told the uid of a pod and what it is now, None if it is gone.
        listed: Told after each list that succeeded.
        resync_s: Time between two lists.
        clock: Monotonic seconds.

    Attributes:
        selection: As given.
        pods: Those that are there, by uid.
        listed_s: When they were last listed; None while they never were.
        listed_version: Version of that list.
        version: From where a watch goes on; empty while only a list can tell.
        problem: What is wrong with the list; None if nothing is.
        failures: How often what went wrong.
        restarts: How often the watch ended otherwise than by its time.
        missed: How many changes a list found that the watch did not tell.
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
        self._known = asyncio.Event()
        self._listing = False
        self._empty = False
        self._ended: set[str] = set()
        """Pods that the watch said are gone while a list was under way."""
        self._found: dict[str, int] = {}
        """Versions of pods that the last list brought, 0 of those that are gone, until the watch has them."""
        self._caught_up = asyncio.Event()
        """The watch has said all that the last list found."""
        self._watch_limit: asyncio.Timeout | None = None

    async def run(self) -> None:
        """Follow the pods, for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reconciling(), name=f"list {self.selection}")
                tasks.create_task(self._watching(), name=f"watch {self.selection}")
        finally:
            await self._source.close()

    async def reconcile(self) -> None:
        """List the pods and take over what is new.

        Raises:
            ApiFailure: They cannot be listed; everything stays as it was.
        """
        selection = self.selection
        self._ended.clear()
        self._listing = True
        try:
            listed = await self._source.list_pods(selection.namespace, selection.selector)
        finally:
            self._listing = False
        first = self.listed_s is None
        self._found.clear()
        self._caught_up.clear()
        self.listed_version = parsed_whole(listed.version, VERSION_MAX) or 0
        there = set()
        for pod in listed.pods:
            there.add(pod.uid)
            known = self.pods.get(pod.uid)
            if pod.uid not in self._ended and (known is None or _newer(pod, known)):
                self._take(pod)
                self._found[pod.uid] = pod.version
        for uid in [uid for uid in self.pods if uid not in there]:
            if self.pods[uid].version <= self.listed_version:
                self._drop(uid)
                self._found[uid] = 0
        if first or not self.version:
            self._found.clear()
            self.version = listed.version
            self._known.set()
        self.listed_s = self._clock()
        self._succeeded(len(there))
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
            if self._found:
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
                self._known.clear()
                await self._known.wait()
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
                self.version = ""  # what it was about is passed over: the list says how things are
                self._relist.set()
                self._note_restart(_crashed(error))
            if failed or self._clock() - begun_s < BACKOFF_S[0]:
                # A server that ends each watch at once must not make us ask as fast as we can.
                await asyncio.sleep(_backoff_s(max(failed, 1)))

    async def _watch_once(self) -> None:
        """Watch until the server ends it, or its time is over.

        Raises:
            ApiFailure: It ended otherwise.
        """
        lasts_s = random.randint(*WATCH_S)  # noqa: S311 - it spreads load, and guards nothing
        selection = self.selection
        events = self._source.watch_pods(selection.namespace, selection.selector, self.version, lasts_s)
        try:
            async with asyncio.timeout(lasts_s + SILENCE_S) as self._watch_limit, contextlib.aclosing(events):
                async for event in events:
                    self.heard(event)
        except TimeoutError:
            raise ApiFailure(Trouble.TIMEOUT, "the watch fell silent") from None
        finally:
            self._watch_limit = None

    def heard(self, event: PodEvent) -> None:
        """Take in what the watch says."""
        pod = event.pod
        self.version = pod.metadata.resource_version or self.version
        if event.kind == "BOOKMARK":
            return
        gone = event.kind == "DELETED"
        found = self._found.get(pod.uid)
        if found is not None and (gone or pod.version >= found > 0):
            del self._found[pod.uid]
            if not self._found:
                self._caught_up.set()
        known = self.pods.get(pod.uid)
        if gone:
            if self._listing:
                self._ended.add(pod.uid)
            if known is not None:
                self._drop(pod.uid)
        elif known is None or _newer(pod, known):
            self._take(pod)

    def _judge_watch(self) -> None:
        """Begin the watch anew if it did not say what the list has found."""
        if not self._found:
            return
        self.missed += len(self._found)
        logger.warning(
            "a watch missed changes of pods, which the list found",
            extra={"event": "discovery.missed", "selection": str(self.selection), "count": len(self._found)},
        )
        self._found.clear()
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
            "a watch of pods begins anew",
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


def _newer(pod: Pod, known: Pod) -> bool:
    """Whether a pod is newer than what is known of it, or at least not the same if versions say nothing."""
    if pod.version and known.version:
        return pod.version > known.version
    return pod != known


def _backoff_s(failed: int) -> float:
    first_s, most_s = BACKOFF_S
    return min(first_s * 2.0 ** min(failed - 1, 10), most_s) * random.uniform(0.75, 1.25)  # noqa: S311
