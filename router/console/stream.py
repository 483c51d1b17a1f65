"""Messages for the console's pages: the whole state once, then changes.

    listen ──> `state`: everything          first listener: the producer starts
               `change` every second        workers, loads and sections that changed
               `decisions` as they happen   at most `DECISIONS_PER_S`, the others counted
               `end`                        this process ends: ask another replica

One producer asks the gateway while any page listens, in steps between which the event loop goes on, and
encodes each message once for all. A listener with a full queue is dropped: its page connects again and gets
the whole state.

Messages are Server-Sent Events with a line of JSON each. Rows of workers are lists, in the order of the
fields that ``state`` names, which saves most of the bytes. ``change`` is sent every second, even if it is
empty, so that a page notices a lost stream.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from router.console.ports import FleetView, WorkerFacts, WorkerLoad
from router.console.rate_window import RateWindow, Sample
from router.errors import Overloaded

logger = logging.getLogger(__name__)

LISTENERS_MAX = 32
"""Pages at a time per process."""

QUEUED_MAX = 64
"""Messages that a listener may be behind: some fifteen seconds."""

LOOK_S = 1.0
SLOW_LOOKS = 5
"""Looks between two questions for slow sections."""

DECISIONS_PER_S = 48
DECISION_LOOKS = 4
"""Questions for decisions per look."""

STEP = 250
"""Workers compared in one turn of the loop, some tenths of a millisecond."""


class TooManyListeners(Overloaded):
    """All places of listeners are taken."""

    status = 503
    code = "too_many_listeners"


class Listener:
    """Queue of one page's messages."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUED_MAX)
        self.dropped = False

    def put(self, message: bytes | None) -> None:
        """Add a message; None ends. One that is too far behind hears no more."""
        if self.dropped:
            return
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self.dropped = True
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put_nowait(None)

    async def next(self) -> bytes | None:
        """The next message; None if there will be no more."""
        return await self._queue.get()


class EventStream:
    """Sends messages to all listeners; ``ending`` returns True if this process was told to end."""

    def __init__(
        self,
        fleet_view: FleetView,
        rates: RateWindow,
        ending: Callable[[], bool],
        look_s: float = LOOK_S,
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._fleet_view = fleet_view
        self._rates = rates
        self._ending = ending
        self._look_s = look_s
        self._now_unix_s = now_unix_s
        self._listeners: set[Listener] = set()
        self._producer: asyncio.Task[None] | None = None
        self._facts: dict[int, WorkerFacts] = {}
        self._loads: dict[int, WorkerLoad] = {}
        self._sections: dict[str, Any] = {}
        self._sampled_unix_s = 0.0
        self._cursor: int | None = None
        self._told: deque[Mapping[str, Any]] = deque(maxlen=DECISIONS_PER_S)

    @property
    def listeners(self) -> int:
        """Number of listeners."""
        return len(self._listeners)

    async def messages(self, listener: Listener) -> AsyncIterator[bytes]:
        """Yield a listener's messages until the process ends or the listener is dropped."""
        try:
            while (message := await listener.next()) is not None:
                yield message
        finally:
            self.leave(listener)

    def join(self) -> Listener:
        """Add a listener, which gets the state once it is known; raise TooManyListeners if it is full."""
        if len(self._listeners) >= LISTENERS_MAX:
            raise TooManyListeners(
                f"{LISTENERS_MAX} pages are connected to this replica; close one.", retry_after_s=5.0
            )
        listener = Listener()
        if self._sections:
            listener.put(self._state())
        self._listeners.add(listener)
        if self._producer is None:
            self._producer = asyncio.create_task(self._produce(), name="console")
        return listener

    def leave(self, listener: Listener) -> None:
        """Remove a listener; with the last one the producer ends."""
        self._listeners.discard(listener)
        if not self._listeners and self._producer is not None:
            self._producer.cancel()
            self._forget()

    async def close(self) -> None:
        """End all, and wait for the producer."""
        producer = self._producer
        self._tell_end()
        if producer is not None:
            producer.cancel()
            await asyncio.gather(producer, return_exceptions=True)

    # The producer.

    async def _produce(self) -> None:
        """Look and send until no page listens; if it ever fails, pages connect again."""
        try:
            turns = 0
            while not self._ending():
                await self._look(slow=turns % SLOW_LOOKS == 0)
                turns += 1
                for _ in range(DECISION_LOOKS):
                    self._tell_decisions()
                    await asyncio.sleep(self._look_s / DECISION_LOOKS)
                    if self._ending():
                        break
        except Exception:
            logger.exception("the console's stream failed", extra={"event": "console.failed"})
        self._tell_end()

    def _tell_end(self) -> None:
        self._tell(_message("end", {}))
        self._tell(None)
        self._listeners.clear()
        self._forget()

    def _forget(self) -> None:
        self._producer = None
        self._facts, self._loads, self._sections = {}, {}, {}
        self._cursor = None
        self._told.clear()

    async def _look(self, *, slow: bool) -> None:
        """Send the changes; the whole state at first."""
        first = not self._sections
        sections = {**await self._fleet_view.sections(slow=slow or first), "replicas": self._replicas()}
        facts = self._fleet_view.facts()
        changed, gone = await self._compare(facts)
        sections["troubles"] = self._rates.wrong(facts)
        loads = self._fleet_view.loads(facts)
        moved = [load for load in loads if self._loads.get(load.key) != load]
        self._loads = {load.key: load for load in loads}
        different = {name: filled for name, filled in sections.items() if self._sections.get(name) != filled}
        self._sections |= different
        samples = self._new_samples()
        if first:
            self._next_decisions(DECISIONS_PER_S)
            self._tell(self._state())
            return
        change: dict[str, Any] = {
            "workers": changed,
            "gone": gone,
            "loads": moved,
            "sections": different,
            "samples": samples,
        }
        filled = {name: value for name, value in change.items() if value}
        self._tell(_message("change", {"at_unix_s": round(self._now_unix_s(), 3), **filled}))

    async def _compare(self, facts: Sequence[WorkerFacts]) -> tuple[list[WorkerFacts], list[int]]:
        """Return the changed workers, and the keys of those that are gone."""
        before, changed = self._facts, []
        for start in range(0, len(facts), STEP):
            if start:
                await asyncio.sleep(0)
            changed += [each for each in facts[start : start + STEP] if before.get(each.key) != each]
        self._facts = {each.key: each for each in facts}
        return changed, [key for key in before if key not in self._facts]

    def _new_samples(self) -> list[Sample]:
        new = [sample for sample in self._rates.samples if sample.at_unix_s > self._sampled_unix_s]
        if new:
            self._sampled_unix_s = new[-1].at_unix_s
        return new

    def _replicas(self) -> list[Mapping[str, Any]]:
        return [{"id": each.replica, **each.shown} for each in self._rates.replicas]

    def _next_decisions(self, most: int) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Return the new decisions, and the number of skipped ones."""
        newest, skipped, self._cursor = self._fleet_view.decisions(self._cursor, most)
        self._told.extend(newest)
        return newest, skipped

    def _tell_decisions(self) -> None:
        newest, skipped = self._next_decisions(DECISIONS_PER_S // DECISION_LOOKS)
        if newest:
            self._tell(_message("decisions", {"decisions": newest, "skipped": skipped}))

    def _tell(self, message: bytes | None) -> None:
        dropped = []
        for listener in self._listeners:
            listener.put(message)
            if listener.dropped:
                dropped.append(listener)
        for listener in dropped:
            self._listeners.discard(listener)
            logger.info("a page of the console reads too slowly", extra={"event": "console.dropped"})

    def _state(self) -> bytes:
        return _message(
            "state",
            {
                "at_unix_s": round(self._now_unix_s(), 3),
                "replica": self._fleet_view.replica,
                "version": self._fleet_view.version,
                "look_s": self._look_s,
                "worker_fields": WorkerFacts._fields,
                "load_fields": WorkerLoad._fields,
                "sample_fields": Sample._fields,
                "workers": list(self._facts.values()),
                "loads": list(self._loads.values()),
                "sections": self._sections,
                "samples": list(self._rates.samples),
                "decisions": list(self._told),
            },
        )


def _message(event: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(data))
