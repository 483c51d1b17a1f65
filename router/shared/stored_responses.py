"""The worker that keeps each stored response, told to all replicas through Redis (decision 0083).

    keep ──> memory of this process, and due entries ──run──> SET cw:{ns}:response:{hash} worker PX ttl
    find ──> memory ── not there ──> GET, in a task ──> found, unknown, or cannot be told

Keys are hashes of tenant and id, so a tenant never finds the response of another one. Entries are bounded by
their time to live and, for each process, by ``responses_max``: the oldest one is deleted, here and in Redis.
Due and asked entries are bounded, too. Without Redis each process knows its own responses.

Nothing is asked, and no connection made, before the first response.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from router.errors import StateError
from router.session_rules import SessionRules
from router.shared.keys import Keys
from router.shared.server import Command, RedisLink, leave_replaced

logger = logging.getLogger(__name__)

FIND_S_MAX = 0.5
"""Longest wait for an answer of Redis, in seconds. A response is asked for seldom."""

TIMEOUT_S = 1.0
PAUSE_S = 0.5
"""Pause after Redis failed."""

DUE_MAX = 10_000
BATCH_MAX = 256
ASKED_MAX = 1_000
WORKER_BYTES_MAX = 512

UNKNOWN = ""
"""No replica knows the response."""

Found = Callable[[str | None], None]
"""Takes the id of the worker, `UNKNOWN`, or None if it cannot be told now."""


class StoredResponses:
    """The workers of stored responses, as one process knows them. For use from the event loop's thread.

    Attributes:
        dropped: Entries that were not told to other replicas, since Redis did not take them in time.
    """

    def __init__(
        self,
        rules: SessionRules,
        url: str,
        keys: Keys,
        replica: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys, self._now_s = keys, now_s
        self._link = RedisLink(url, TIMEOUT_S, home=keys.log, name=f"cacheway-responses-{replica}")
        self._workers: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._due: OrderedDict[str, str] = OrderedDict()
        self._wake = asyncio.Event()
        self._asked: set[asyncio.Task[None]] = set()
        self._telling = 0
        self._lost = False
        self.dropped = 0
        self.use(rules)

    def __len__(self) -> int:
        """Number of responses remembered here."""
        return len(self._workers)

    @property
    def due(self) -> int:
        """Number of entries that Redis has not taken yet."""
        return len(self._due) + self._telling

    @property
    def is_on(self) -> bool:
        """True if responses are remembered."""
        return self._most > 0

    def use(self, rules: SessionRules) -> None:
        """Apply new settings to later responses."""
        self._most, self._ttl_s = rules.responses_max, rules.response_ttl_s
        self._forget_oldest()

    def keep(self, tenant: str, response_id: str, worker_id: str) -> None:
        """Remember the worker of a response, and tell the other replicas."""
        if not self._most:
            return
        name = name_of(tenant, response_id)
        self._workers[name] = worker_id, self._now_s() + self._ttl_s
        self._workers.move_to_end(name)
        self._say(name, worker_id)
        self._forget_oldest()

    def knows(self, tenant: str, response_id: str) -> bool:
        """Return True if the response is remembered here."""
        return name_of(tenant, response_id) in self._workers

    def find(self, tenant: str, response_id: str, found: Found) -> None:
        """Find the worker of a response; ``found`` is called before this returns, or later."""
        name = name_of(tenant, response_id)
        worker_id, until_s = self._workers.get(name, (UNKNOWN, 0.0))
        if until_s > self._now_s():
            found(worker_id)
        elif len(self._asked) >= ASKED_MAX:
            found(None)
        else:
            task = asyncio.ensure_future(self._ask(name, found))
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)

    async def run(self) -> None:
        """Tell Redis the due entries, until cancelled. Failures of Redis do not end it."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(leave_replaced(self._link), name="responses-server")
                while True:
                    await self._wake.wait()
                    await self._tell()
        finally:
            for task in tuple(self._asked):
                task.cancel()
            await self._link.aclose()

    # Inside.

    async def _tell(self) -> None:
        batch = [self._due.popitem(last=False) for _ in range(min(len(self._due), BATCH_MAX))]
        if not self._due:
            self._wake.clear()
        ttl_ms = max(int(self._ttl_s * 1000), 1)
        commands: list[Command] = [
            ("SET", key, worker_id, "PX", ttl_ms) if worker_id else ("DEL", key)
            for key, worker_id in ((self._keys.response(name), worker) for name, worker in batch)
        ]
        self._telling = len(batch)
        try:
            await self._link.calls(*commands)
        except StateError as error:
            if not self._lost:
                logger.warning(
                    "stored responses are not told to other replicas",
                    extra={"event": "responses.degraded", "reason": str(error)},
                )
            self._lost = True
            for name, worker_id in batch:
                if name not in self._due:
                    self._say(name, worker_id)
            await asyncio.sleep(PAUSE_S)
            return
        finally:
            self._telling = 0
        if self._lost:
            self._lost = False
            logger.info(
                "stored responses are told to other replicas again", extra={"event": "responses.recovered"}
            )

    async def _ask(self, name: str, found: Found) -> None:
        worker_id: str | None
        try:
            async with asyncio.timeout(FIND_S_MAX):
                reply = await self._link.call("GET", self._keys.response(name))
            worker_id = UNKNOWN if reply is None else _worker_in(reply)
        except (StateError, TimeoutError):
            worker_id = None
        found(worker_id)

    def _say(self, name: str, worker_id: str) -> None:
        if len(self._due) >= DUE_MAX:
            self.dropped += 1
            return
        self._due[name] = worker_id
        self._wake.set()

    def _forget_oldest(self) -> None:
        while len(self._workers) > self._most:
            name, _ = self._workers.popitem(last=False)
            self._say(name, UNKNOWN)


def name_of(tenant: str, response_id: str) -> str:
    """Return the name under which a tenant's response is kept: 32 hexadecimal digits."""
    return hashlib.sha256(f"{tenant}\n{response_id}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _worker_in(reply: object) -> str:
    """Return the id of a worker in an answer of Redis, which others may have written."""
    if not isinstance(reply, bytes) or len(reply) > WORKER_BYTES_MAX:
        return UNKNOWN
    return reply.decode("utf-8", "replace")
