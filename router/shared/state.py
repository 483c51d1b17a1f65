"""The shared state of one replica: a fold, kept equal to everybody else's through one log.

`SharedState.publish` applies an operation at once and leaves the rest to `SharedState.run`, so
that a decision never waits for Redis. `run` holds one *session* after another:

                  .-------------------- backoff with jitter <---------------------.
                  v                                                               |
    connect -> clock -> beat -> locate -> flush | read | beat | clock | snapshot  -'  Redis lost
    `------------ degraded ------------'  `------ a task each, until one fails --'

Failures: a lost connection ends the session and everything above is done again, from the position
reached; a refused command (out of memory) degrades that loop alone, which tries again. Degraded or
not, `publish` works and the buffer is bounded. If Redis comes back empty, or own operations were
dropped meanwhile, the fold goes into a snapshot and a mark in the log makes the others merge it.
A fresh replica on an empty Redis waits one snapshot interval before it writes, so that a survivor,
who knows more, comes first.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass

from policies import Left, Op
from router.errors import StateError
from router.shared.clock import LogClock, TimeSample
from router.shared.heartbeat import Heartbeat
from router.shared.keys import Keys
from router.shared.ports import Fold, NoListener, SharedListener
from router.shared.problems import Problems
from router.shared.publisher import VERSION, Publisher
from router.shared.reader import Reader
from router.shared.server import RedisLink, RedisLost, RedisRefused
from router.shared.snapshot import TRIM_MARGIN_S, Snapshot, SnapshotHead, SnapshotStore
from router.shared.snapshot import VERSION as SNAPSHOT_VERSION

logger = logging.getLogger(__name__)

# A blocking read plus its answer stays under a second: so soon is a silent Redis noticed.
COMMAND_TIMEOUT_S = 0.75
BLOCK_S = 0.2
BULK_TIMEOUT_S = 10.0
GOODBYE_TIMEOUT_S = 1.0
BACKOFF_S = 0.05
BACKOFF_S_MAX = 1.5
CLOCK_INTERVAL_S = 10.0
CLOCK_SAMPLES = 5
SNAPSHOT_TICK_S = 1.0
# A newcomer applies about 100,000 entries per second and core, so this is two seconds of work.
SNAPSHOT_ENTRIES = 200_000


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """What a replica needs to know to share its state.

    Attributes:
        url: Where Redis is (`router.shared.server.RedisLink`).
        namespace: Replicas of one namespace share their state.
        replica: Id of this replica, unique in the namespace among those that run.
        address: Where operators reach this replica; only shown.
        version: Version of the gateway; only shown.
        flush_interval_s: How long operations are gathered into one entry.
        buffer_ops_max: Most own operations kept while Redis is gone.
        buffer_bytes_max: Most bytes of them.
        snapshot_interval_s: Age at which the snapshot is replaced.
        trim_margin_s: How much of the log is kept behind the snapshot.
        heartbeat_ttl_s: Time without a heartbeat after which a replica has left.
    """

    url: str
    namespace: str
    replica: str
    address: str = ""
    version: str = ""
    flush_interval_s: float = 0.002
    buffer_ops_max: int = 100_000
    buffer_bytes_max: int = 64 << 20
    snapshot_interval_s: float = 10.0
    trim_margin_s: float = TRIM_MARGIN_S
    heartbeat_ttl_s: float = 3.0


@dataclass(frozen=True, slots=True)
class LogStatus:
    """How well this replica shares.

    Attributes:
        connected: A session is running.
        degraded_reason: Why Redis does not do its work; None if it does.
        lag_s: Age of the newest entry of another replica when it was applied; 0 when idle.
        snapshot_age_s: Age of the newest snapshot; None if there is none.
        buffered_ops: Own operations that Redis has not acknowledged.
        dropped_ops: Own operations dropped since the start.
        skipped_ops: Operations of others not understood or not applied since the start.
        replicas: Ids of the replicas that are alive, this one included.
        ready: The log had once been read to its end: this replica is as warm as the others.
    """

    connected: bool
    degraded_reason: str | None
    lag_s: float
    snapshot_age_s: float | None
    buffered_ops: int
    dropped_ops: int
    skipped_ops: int
    replicas: tuple[str, ...]
    ready: bool


class SharedState:
    """One replica's part in the shared log. Create and use it on the event loop.

    Args:
        config: Where and who.
        fold: What every replica's operations are applied to.
        clock: Log time; the one that stamps the operations published here.
        listener: Told what happens, for metrics.

    Raises:
        StateError: The URL makes no sense.
        ValueError: The namespace makes no sense.
    """

    def __init__(
        self, config: SharedConfig, fold: Fold, clock: LogClock, listener: SharedListener | None = None
    ) -> None:
        self._config = config
        self._fold = fold
        self._clock = clock
        self._listener: SharedListener = listener or NoListener()
        self._keys = keys = Keys(config.namespace)
        # A replica that starts again under its old id must read what it wrote in its former life.
        self._writer = f"{config.replica}/{secrets.token_hex(4)}".encode()
        self._problems = Problems(self._listener)
        self._publisher = Publisher(
            self._writer,
            keys,
            self._listener,
            self._problems,
            interval_s=config.flush_interval_s,
            ops_max=config.buffer_ops_max,
            bytes_max=config.buffer_bytes_max,
        )
        self._heartbeat = Heartbeat(
            config.replica,
            keys,
            clock,
            self._declare_left,
            ttl_s=config.heartbeat_ttl_s,
            address=config.address,
            version=config.version,
        )
        self._snapshots = SnapshotStore(self._writer, keys, self._listener, config.trim_margin_s)
        self._reader = Reader(
            self._writer,
            keys,
            fold,
            clock,
            self._snapshots,
            self._listener,
            self._on_left,
            margin_s=config.trim_margin_s,
            block_s=BLOCK_S,
        )
        self._started_us = clock.now_us()
        self._connected = False
        self._connected_s = 0.0
        self._snapshot_at_us: int | None = None
        self._snapshot_entries = 0
        self._must_refill = False
        self._must_mark = False
        self._told_dropped = 0
        self._links()  # a URL that makes no sense fails here and not in the background

    @property
    def status(self) -> LogStatus:
        """How well this replica shares, now."""
        at_us = self._snapshot_at_us
        return LogStatus(
            connected=self._connected,
            degraded_reason=self._problems.reason,
            lag_s=self._reader.lag_s,
            snapshot_age_s=None if at_us is None else max(0.0, (self._clock.now_us() - at_us) / 1e6),
            buffered_ops=len(self._publisher),
            dropped_ops=self._publisher.dropped_ops,
            skipped_ops=self._reader.skipped_ops,
            replicas=self._heartbeat.replicas,
            ready=self._reader.ready.is_set(),
        )

    def publish(self, op: Op) -> None:
        """Apply an operation here and now, and let the others know soon. Never waits for Redis."""
        self._fold.apply(op)
        self._publisher.put(op)

    async def wait_ready(self) -> None:
        """Wait until the log has been read to its end once."""
        await self._reader.ready.wait()

    async def run(self) -> None:
        """Share until cancelled; then flush, say goodbye and return. Start it once.

        No failure of Redis ends it, and a mistake of our own only ends the session.
        """
        failures = 0
        try:
            while True:
                try:
                    await self._session()
                except StateError as error:
                    self._lost(str(error))
                except Exception as error:
                    logger.exception("shared state failed", extra={"event": "redis.failed"})
                    self._lost(f"internal error: {type(error).__name__}")
                failures = 1 if self._connected else failures + 1
                self._connected = False
                pause_s = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(failures, 10))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        finally:
            self._connected = False
            await self._goodbye()

    def _lost(self, reason: str) -> None:
        self._problems.set("connection", reason)
        self._heartbeat.interrupted()

    async def _session(self) -> None:
        """Connect, catch up and share until something fails."""
        async with contextlib.AsyncExitStack() as stack:
            commands, blocking, bulk = self._links()
            for link in (commands, blocking, bulk):
                stack.push_async_callback(link.aclose)
            await self._synchronise(commands)
            await self._beat(commands)
            if not await self._reader.locate(commands, bulk):
                self._must_refill = True
            self._connected, self._connected_s = True, time.monotonic()
            self._problems.clear("connection")
            failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
            async with asyncio.TaskGroup() as group:
                loops = (
                    ("flush", self._publisher.run(commands)),
                    ("read", self._reader.run(blocking, commands, bulk)),
                    ("heartbeat", self._beat_loop(commands)),
                    ("clock", self._clock_loop(commands)),
                    ("snapshot", self._snapshot_loop(commands, bulk)),
                )
                tasks = [
                    group.create_task(_report(loop, failed), name=f"shared-{name}") for name, loop in loops
                ]
                error = await failed
                for task in tasks:
                    task.cancel()
            raise error

    def _links(self) -> tuple[RedisLink, RedisLink, RedisLink]:
        """Links for short commands, blocking reads, and large values."""
        url = self._config.url
        return (
            RedisLink(url, COMMAND_TIMEOUT_S),
            RedisLink(url, COMMAND_TIMEOUT_S + BLOCK_S),
            RedisLink(url, BULK_TIMEOUT_S),
        )

    async def _goodbye(self) -> None:
        """Flush, say `Left` and remove the heartbeat, if Redis lets us in time; else it expires."""
        link = RedisLink(self._config.url, GOODBYE_TIMEOUT_S)
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                self.publish(Left(self._config.replica, self._clock.now_us()))
                await self._publisher.flush(link)
                await self._heartbeat.goodbye(link)
        except (StateError, TimeoutError) as error:
            logger.warning(
                "left without a goodbye",
                extra={"event": "replica.left_silently", "reason": str(error), "ops": len(self._publisher)},
            )
        finally:
            await link.aclose()

    async def _clock_loop(self, link: RedisLink) -> None:
        """Measure the offset to Redis time again and again."""
        while True:
            await asyncio.sleep(CLOCK_INTERVAL_S)
            await self._synchronise(link)

    async def _synchronise(self, link: RedisLink) -> None:
        samples = []
        for _ in range(CLOCK_SAMPLES):
            sent_ns = time.monotonic_ns()
            seconds, microseconds = await link.call("TIME")
            received_ns = time.monotonic_ns()
            samples.append(TimeSample(sent_ns, received_ns, int(seconds) * 1_000_000 + int(microseconds)))
        self._clock.synchronise(samples)

    async def _beat_loop(self, link: RedisLink) -> None:
        """Beat until the session ends."""
        while True:
            await asyncio.sleep(self._heartbeat.interval_s)
            await self._beat(link)

    async def _beat(self, link: RedisLink) -> None:
        try:
            await self._heartbeat.beat(link)
            self._problems.clear("heartbeat")
        except RedisRefused as error:
            self._problems.set("heartbeat", f"Redis refused the heartbeat: {error}")

    def _on_left(self, op: Left) -> None:
        self._heartbeat.left(op)
        if op.replica == self._config.replica and op.at_us > self._started_us:
            logger.warning(
                "siblings gave this replica up while it was alive",
                extra={"event": "replica.given_up", "replica": op.replica, "at_us": op.at_us},
            )

    def _declare_left(self, op: Left) -> None:
        logger.warning(
            "replica left", extra={"event": "replica.left", "replica": op.replica, "at_us": op.at_us}
        )
        self._listener.replica_left(op.replica)
        self.publish(op)

    async def _snapshot_loop(self, commands: RedisLink, bulk: RedisLink) -> None:
        """Look every second whether a snapshot is due, and write it if nobody else does."""
        while True:
            try:
                await self._snapshot_tick(commands, bulk)
                self._problems.clear("snapshot")
            except RedisRefused as error:
                self._problems.set("snapshot", f"Redis refused the snapshot: {error}")
            await asyncio.sleep(SNAPSHOT_TICK_S * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    async def _snapshot_tick(self, commands: RedisLink, bulk: RedisLink) -> None:
        if await self._reader.vanished(commands):
            raise RedisLost("the log is gone from Redis")
        if not self.status.ready:
            return
        head = await self._snapshots.head(commands)
        if head is None or head.at_us != self._snapshot_at_us:
            self._snapshot_at_us = head.at_us if head else None
            self._snapshot_entries = self._reader.entries
        if self._must_refill and head is not None:
            # Another survivor was here first; the fold has merged what it wrote.
            self._must_refill = False
        if self._publisher.dropped_ops > self._told_dropped:
            self._must_mark = True
        if self._due(head) and await self._snapshots.acquire(commands):
            await self._write_snapshot(commands, bulk)

    def _due(self, head: SnapshotHead | None) -> bool:
        if head is not None and head.version > SNAPSHOT_VERSION:
            return False  # during a roll-out: newer replicas write what older ones cannot read
        if self._must_refill or self._must_mark:
            return True
        interval_s = self._config.snapshot_interval_s
        if head is None:
            return time.monotonic() - self._connected_s >= interval_s
        return (
            self._clock.now_us() - head.at_us >= interval_s * 1e6
            or self._reader.entries - self._snapshot_entries >= SNAPSHOT_ENTRIES
        )

    async def _write_snapshot(self, commands: RedisLink, bulk: RedisLink) -> None:
        """Write the fold, and if the log cannot tell the others what is in it, tell them to read it."""
        dropped, mark = self._publisher.dropped_ops, self._must_refill or self._must_mark
        head = SnapshotHead(SNAPSHOT_VERSION, self._reader.position, self._clock.now_us())
        if not await self._snapshots.write(bulk, Snapshot(head, self._fold.snapshot())):
            return
        if mark:
            await commands.call("XADD", self._keys.log, "*", "v", VERSION, "r", self._writer, "s", head.at_us)
            self._told_dropped = dropped
        self._snapshot_at_us, self._snapshot_entries = head.at_us, self._reader.entries
        self._must_refill = self._must_mark = False


async def _report(loop: Coroutine[None, None, None], failed: asyncio.Future[Exception]) -> None:
    """Run a loop of a session; its failure ends the session, and is nobody else's exception.

    (A `asyncio.TaskGroup` whose task fails hides a cancellation that comes at the same time.)
    """
    try:
        await loop
    except Exception as error:  # noqa: BLE001 - the top of a loop; the session raises it
        if not failed.done():
            failed.set_result(error)
