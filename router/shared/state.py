"""The shared state of one replica: a fold, kept equal to all others through one log.

`SharedState.publish` applies an operation at once and leaves the rest to `SharedState.run`, so
that a decision never waits for Redis. `run` holds one *session* after another:

                           .----------------------- backoff with jitter <-----------------------.
                           v                                                                    |
    connect -> clock, seed -> beat -> locate -> flush | read | beat | clock | snapshot | watch -'  Redis lost
    `---------------- degraded ------------'  `----------- a task each, until one fails -------'

Failures: a lost connection ends the session and everything above is done again, from the position
reached; a refused command (out of memory) degrades that loop alone, which tries again. Degraded or
not, `publish` works and the buffer is bounded. A server that falls silent is degraded long before it
is given up: one that is paused or slow for a moment costs no new connections.

Entries that Redis acknowledged and lost come back: if another server process answers than
before, or our place in the log is gone, the newest own entries are appended again. If no snapshot
covers that place (Redis is empty or rolled back), or own operations were dropped, the fold goes into
a snapshot that the others are asked to merge (`router.shared.keeper`), and every replica says again what it
has in flight. And heartbeats carry digests of all registers, so that a word that one replica alone knows is
found, for any cause of its loss at the others (`router.shared.agreement`).
"""

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial

import msgspec

from policies import Left, LoadVectors, Op, OpRefused, Placed, TimeSample, encode_op
from router.errors import StateError
from router.shared.agreement import Agreement
from router.shared.clock import LogClock
from router.shared.completing_fold import CompletingFold
from router.shared.config import LogStatus, SharingRules
from router.shared.degraded_reasons import DegradedReasons
from router.shared.hash_seed import HashSeed
from router.shared.heartbeat import Heartbeat
from router.shared.keeper import SnapshotKeeper
from router.shared.keys import Keys
from router.shared.peer_presence import PeerPresence
from router.shared.placed_forms import PlacedForms
from router.shared.ports import Fold, NoListener, SharedListener
from router.shared.publisher import Publisher, PublisherRules
from router.shared.reader import Reader, ReaderRules
from router.shared.redis_latency import RedisLatency
from router.shared.server import SERVER_INTERVAL_S, RedisLink, RedisLost, RedisRefused
from router.shared.snapshot import SnapshotStore
from router.shared.vitals import Vitals, decoded

logger = logging.getLogger(__name__)

# Twice over a server that answers 400 ms late works. A silent one is noticed sooner, by the watch: a
# blocking read is under way at any time, so `BLOCK_S` + `SILENCE_S` + 2 `WATCH_S` stays under a second.
COMMAND_TIMEOUT_S = 1.5
# A Valkey of our own shares this machine, which may be busy. If it is gone, its socket says so at once.
EMBEDDED_TIMEOUT_S = 10.0
BLOCK_S = 0.4
SILENCE_S = 0.25
WATCH_S = 0.05
BULK_TIMEOUT_S = 10.0
GOODBYE_TIMEOUT_S = 1.0
BACKOFF_S = 0.05
BACKOFF_S_MAX = 1.5
# A session that ends sooner counts as a failed one: the next begins after a longer pause.
STEADY_S = 5.0
CLOCK_INTERVAL_S = 10.0
CLOCK_SAMPLES = 5
# On a slow link more than three cost time and tell nothing more; fewer may all be one stall's.
CLOCK_SAMPLES_SLOW = 3
CLOCK_SAMPLING_S = 0.1
SNAPSHOT_TICK_S = 1.0
# Some 10 us each: registers that are published again hold the loop for a millisecond at a time.
OPS_AT_ONCE = 100

BUFFER_BYTES_MAX = 64 << 20
"""Bytes of own operations kept while Redis is gone."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The process around a shared state.

    Attributes:
        on_given_up: Called with `Left.at_us` when the log says that this live replica has left: its siblings
            have dropped its requests in flight until then.
        on_seed: Called with the seed of hashes that replicas share, when it is known and when it changes.
        vitals: Returns the vitals that this replica reports with its heartbeat.
        embedded: True if the gateway runs the Valkey itself, on this machine.
        link: Makes the links to Redis.
        monotonic_s: The local clock; its zero does not matter.
    """

    on_given_up: Callable[[int], None] | None = None
    on_seed: Callable[[int], None] = lambda _seed: None
    vitals: Callable[[], Vitals] = Vitals
    embedded: bool = False
    link: Callable[..., RedisLink] = RedisLink
    monotonic_s: Callable[[], float] = time.monotonic


class SharedState:
    """One replica's part in the shared log. Create and use it on the event loop.

    Args:
        rules: Rules for sharing operations and snapshots.
        url: Address of Redis (`router.shared.server.RedisLink`).
        replica: Id of this replica, unique in the namespace among those that run.
        fold: Fold that every replica's operations are applied to.
        clock: Log time; the one that stamps the operations published here.
        listener: Hears events, for metrics.
        hooks: The process around it.

    Raises:
        StateError: The URL makes no sense.
        ValueError: The namespace makes no sense.
    """

    def __init__(
        self,
        rules: SharingRules,
        url: str,
        replica: str,
        fold: Fold,
        clock: LogClock,
        listener: SharedListener | None = None,
        hooks: Hooks = Hooks(),
    ) -> None:
        self._hooks = hooks
        self._seed_known = asyncio.Event()
        self._rules = rules
        self._replica = replica
        self._fold, self._handlers = fold, fold.handlers
        self._clock = clock
        self._listener: SharedListener = listener or NoListener()
        self._keys = keys = Keys(rules.namespace)
        self._seed = HashSeed(keys.seed)
        # A replica that starts again under its old id must read the entries of its former life.
        self._writer = f"{replica}/{secrets.token_hex(4)}".encode()
        self._degraded_reasons = DegradedReasons(self._listener)
        self._forms = PlacedForms(replica, onward=lambda: self._heartbeat.onward)
        self._heartbeat = self._make_heartbeat()
        self._agreement = Agreement(replica, fold.digests, hooks.monotonic_s)
        self._presence = presence = PeerPresence(lambda: self._heartbeat.siblings, hooks.monotonic_s)
        self._redis_latency = RedisLatency(
            self._degraded_reasons, unheard=lambda: hooks.embedded and presence.alone
        )
        self._loads = fold.load_reports
        self._vectors = LoadVectors(self._loads, clock.now_us, lambda: presence.alone, hooks.monotonic_s)
        self._publisher = self._make_publisher(presence)
        snapshots = SnapshotStore(
            self._writer, keys, self._listener, rules.trim_margin_s, fold.snapshot_version
        )
        self._reader = Reader(
            ReaderRules(self._writer, replica, keys, rules.trim_margin_s, BLOCK_S),
            CompletingFold(fold, self._forms, clock, self._publisher.put),
            clock,
            snapshots,
            self._listener,
            self._on_left,
            redis_latency=self._redis_latency,
            presence=presence,
        )
        self._keeper = SnapshotKeeper(
            rules.snapshot_interval_s,
            clock,
            fold,
            snapshots,
            self._reader,
            self._publisher,
            lambda: self._forms.waits,
        )
        self._started_us: int | None = None
        self._given_up_us = 0
        self._connected, self._connected_s = False, 0.0
        self._disowned_dropped = 0
        self._must_disown = False
        self._answered_marks = 0
        self._server: bytes | None = None
        self._commands, self._blocking, self._bulk = self._links(url)

    def _make_heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self._replica,
            self._keys,
            self._clock,
            self._declare_left,
            ttl_s=self._rules.heartbeat_ttl_s,
            value=lambda: msgspec.json.encode(self._hooks.vitals()),
            digests=lambda: self._agreement.shown(ready=self._reader.ready.is_set()),
            monotonic_s=self._hooks.monotonic_s,
        )

    def _make_publisher(self, presence: PeerPresence) -> Publisher:
        rules = self._rules
        return Publisher(
            self._writer,
            self._keys,
            self._listener,
            self._degraded_reasons,
            presence,
            self._forms,
            self._vectors,
            PublisherRules(rules.flush_interval_ms / 1000, rules.buffer_ops_max, BUFFER_BYTES_MAX),
        )

    def _links(self, url: str) -> tuple[RedisLink, RedisLink, RedisLink]:
        """Links for short commands, blocking reads, and large values."""
        link = partial(self._hooks.link, url, home=self._keys.log, name=f"cacheway-{self._replica}")
        timeout_s = EMBEDDED_TIMEOUT_S if self._hooks.embedded else COMMAND_TIMEOUT_S
        return (
            link(timeout_s, measured=self._redis_latency.measured),
            link(BLOCK_S + timeout_s),
            link(BULK_TIMEOUT_S),
        )

    @property
    def status(self) -> LogStatus:
        """State of sharing at this replica, now."""
        at_us = self._keeper.at_us
        return LogStatus(
            connected=self._connected,
            degraded_reason=self._degraded_reasons.reason,
            lag_s=self._reader.lag_s,
            snapshot_age_s=None if at_us is None else max(0.0, (self._clock.now_us() - at_us) / 1e6),
            buffered_ops=len(self._publisher),
            dropped_ops=self._publisher.dropped_ops,
            skipped_ops={**self._reader.skipped_ops, "unencodable": self._fold.left_out_ops},
            replicas=self._heartbeat.replicas,
            ready=self._reader.ready.is_set(),
            warming=self._reader.warming,
            onward_ops=self._forms.onward,
            unknown_paths=self._forms.unknown,
            differing=self._agreement.differing,
            published_again=self._agreement.published_again,
            lost=self._heartbeat.lost,
        )

    def replicas(self) -> tuple[str, ...]:
        """Ids of the replicas that are alive, this one included."""
        return self._heartbeat.replicas

    @property
    def wrote_snapshot(self) -> bool:
        """True if the newest snapshot is this replica's."""
        return self._keeper.wrote_us is not None and self._keeper.wrote_us == self._keeper.at_us

    async def replicas_vitals(self) -> dict[str, Vitals | None]:
        """Vitals of every living replica, in order of their ids; one round trip.

        Returns:
            None for those that do not reach us: without Redis, all but our own.
        """
        own, replicas = self._replica, self._heartbeat.replicas
        found: dict[str, Vitals | None] = dict.fromkeys(replicas)
        if self._connected and len(replicas) > 1:
            try:
                values = await self._commands.call("MGET", *map(self._keys.replica, replicas))
            except StateError as error:
                logger.info(
                    "the replicas' vitals cannot be read",
                    extra={"event": "vitals.unknown", "reason": str(error)},
                )
            else:
                known = zip(replicas, values, strict=True)
                found = {replica: decoded(value) if value else None for replica, value in known}
        found[own] = self._hooks.vitals()
        return found

    def publish(self, op: Op, *more: Op) -> None:
        """Apply operations here and now, and let the other replicas know soon. Never waits for Redis.

        All of them are encoded before the first is applied, so that this replica never does anything that
        the others cannot be told.

        Raises:
            OpRefused: One of them has a value beyond its bounds. Nothing was applied or published.
        """
        if more:
            for each in (op, *more):
                encode_op(each)
            for each in (op, *more):
                self.publish(each)
            return
        publisher = self._publisher
        # New prompts are always told.
        if (type(op) is Placed and op.paths) or self._loads.tells(op) or not self._heartbeat.reads_vectors:
            body = encode_op(op)
            self._handlers[type(op)](op)
            publisher.put(body)
        else:
            self._handlers[type(op)](op)  # on a request that was told
        if publisher.loads_timer is None:
            publisher.loads_changed()

    async def wait_ready(self) -> None:
        """Wait until the log has been read to its end once."""
        await self._reader.ready.wait()

    async def seed(self, within_s: float) -> int:
        """Return the seed of hashes; one of our own, if Redis does not answer in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._seed_known.wait()
        return self._seed.value

    async def run(self) -> None:
        """Share until cancelled; then flush, say goodbye and return. Start it once.

        No failure of Redis ends it, and a mistake of our own only ends the session.
        """
        failures, crashed = 0, ""
        try:
            while True:
                try:
                    await self._session()
                except StateError as error:
                    self._lost(str(error))
                except Exception as error:
                    if repr(error) != crashed:
                        logger.exception(
                            "shared state failed: it starts again", extra={"event": "redis.failed"}
                        )
                    crashed = repr(error)
                    self._lost(f"internal error: {type(error).__name__}")
                steady = self._connected and time.monotonic() - self._connected_s >= STEADY_S
                failures = 1 if steady else failures + 1
                crashed = "" if steady else crashed
                self._connected = False
                pause_s = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(failures, 10))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        finally:
            self._connected = False
            await self._goodbye()

    def _lost(self, reason: str) -> None:
        self._degraded_reasons.set("connection", reason)
        self._heartbeat.interrupted()
        self._agreement.interrupted()
        self._degraded_reasons.clear("registers")

    async def _session(self) -> None:
        """Connect, catch up and share until something fails."""
        commands, blocking, bulk = self._commands, self._blocking, self._bulk
        try:
            await self._synchronise(commands)
            if self._started_us is None:
                self._must_disown = await self._heartbeat.has_beaten(commands)
                # In the time of the log: its entries of a former life under our id are older.
                self._started_us = self._clock.now_us()
            await self._agree_on_seed(commands)
            await self._beat(commands)
            await self._catch_up(commands, bulk)
            self._connected, self._connected_s = True, time.monotonic()
            self._keeper.connected()
            self._degraded_reasons.clear("connection")
            failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
            async with asyncio.TaskGroup() as group:
                loops = (
                    ("flush", self._publisher.run(commands)),
                    ("read", self._reader.run(blocking, commands, bulk)),
                    ("heartbeat", self._beat_loop(commands)),
                    ("clock", self._clock_loop(commands)),
                    ("snapshot", self._snapshot_loop(commands, bulk)),
                    ("watch", self._watch_loop(commands, blocking)),
                    ("server", self._server_loop(commands, blocking, bulk)),
                )
                tasks = [
                    group.create_task(_report(loop, failed), name=f"shared-{name}") for name, loop in loops
                ]
                error = await failed
                for task in tasks:
                    task.cancel()
            raise error
        finally:
            for link in (commands, blocking, bulk):
                await link.aclose()

    async def _agree_on_seed(self, commands: RedisLink) -> None:
        """Have the seed of hashes that the others have; also after Redis has lost it."""
        changed = await self._seed.agree(commands)
        if changed or not self._seed_known.is_set():
            if self._seed_known.is_set():
                logger.warning(
                    "the namespace has another hash seed: this replica learns the cached prompts again",
                    extra={"event": "seed.changed"},
                )
            self._hooks.on_seed(self._seed.value)
        self._seed_known.set()

    async def _catch_up(self, commands: RedisLink, bulk: RedisLink) -> None:
        """Find our place in the log, and restore entries that Redis has lost since."""
        self._forms.reset()
        self._vectors.lost()
        server, gaps, known = await _server_process(commands), self._reader.gaps, self._reader.position
        if server is None or server != self._server:
            # Before anything else can fail: the next session finds the same server and sees no change.
            self._publisher.resend()
            self._must_disown = self._must_disown or self._server is not None
            self._server = server
        if not await self._located(commands, bulk):
            self._keeper.refill(known)
        if self._reader.gaps > gaps:
            self._publisher.resend()
            self._must_disown = True
        self._disown()

    async def _watch_loop(self, commands: RedisLink, blocking: RedisLink) -> None:
        """Look often whether an answer is overdue: long before the connection is given up.

        One look is not enough: after a stall of this process the answer may be there, unread. No look comes
        before an answer can be overdue.
        """
        looks = 0
        while True:
            silence_s = max(commands.silence_s, blocking.silence_s - BLOCK_S, 0.0)
            looks = looks + 1 if silence_s > SILENCE_S else 0
            if looks > 1:
                self._redis_latency.overdue(SILENCE_S)
            await asyncio.sleep(max(WATCH_S, SILENCE_S - silence_s))

    async def _server_loop(self, *links: RedisLink) -> None:
        """Look whether all links lead to one server, and whether it is still the primary.

        In a failover one link may find the old primary and another the new one: then entries written here are
        not read by replicas that read there. And an old primary that was only paused takes writes until told.
        Both must end well before `router.shared.resend_buffer.KEPT_S`: entries that it acknowledged are lost.
        """
        while True:
            await asyncio.sleep(SERVER_INTERVAL_S)
            servers = {link.endpoint for link in links if link.endpoint is not None}
            if len(servers) > 1:
                raise RedisLost("connections lead to two servers: a failover is under way")
            if await links[0].replaced():
                raise RedisLost("the Sentinels name another primary")

    async def _located(self, commands: RedisLink, bulk: RedisLink) -> bool:
        """Find our place in the log, and beat meanwhile: a large snapshot takes longer than a beat lives."""
        beats = asyncio.create_task(self._beat_loop(commands), name="shared-heartbeat")
        try:
            return await self._reader.locate(commands, bulk)
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def _goodbye(self) -> None:
        """Flush, say `Left` and remove the heartbeat, if Redis lets us in time; else it expires."""
        link = self._commands
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                self._vectors.close()
                self.publish(Left(self._replica, self._clock.now_us()))
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
            slow = received_ns - samples[0].sent_ns > CLOCK_SAMPLING_S * 1e9
            if slow and len(samples) >= CLOCK_SAMPLES_SLOW:
                break
        self._clock.synchronise(samples)

    async def _beat_loop(self, link: RedisLink) -> None:
        """Beat until the session ends."""
        while True:
            await asyncio.sleep(self._heartbeat.interval_s)
            await self._beat(link)
            self._publisher.loads_changed()
            await self._agree()

    async def _beat(self, link: RedisLink) -> None:
        joined, vectors = self._heartbeat.joined, self._heartbeat.reads_vectors
        alone = not self._heartbeat.siblings
        try:
            await self._heartbeat.beat(link)
            # An older version has read placements whose ends it was not told.
            self._must_disown = self._must_disown or (vectors and not self._heartbeat.reads_vectors)
            if alone and self._heartbeat.siblings:
                self._presence.seen()
                self._publisher.hurry()
            if self._heartbeat.joined > joined:
                self._forms.reset()
            self._degraded_reasons.clear("heartbeat")
            step_us = self._clock.follow(self._heartbeat.siblings_us)
            if step_us:
                logger.warning(
                    "log time was set to that of the other replicas",
                    extra={"event": "clock.followed", "step_s": round(step_us / 1e6, 3)},
                )
        except RedisRefused as error:
            self._degraded_reasons.set("heartbeat", f"Redis refused the heartbeat: {error}")
        if any(map(self._degraded_reasons.has, ("heartbeat", "flush", "read"))):
            with contextlib.suppress(RedisRefused):
                await self._heartbeat.remove_foreign(link)

    async def _agree(self) -> None:
        """Compare registers with those of the siblings, and publish registers again that differ for long."""
        if not self._reader.ready.is_set():
            return
        tags = self._agreement.compare(self._heartbeat.shown, self._reader.lag_s)
        for number, op in enumerate(self._fold.words(tags) if tags else ()):
            with contextlib.suppress(OpRefused):  # another version said it, with bounds of its own
                self._publisher.put(encode_op(op))
            if number % OPS_AT_ONCE == OPS_AT_ONCE - 1:
                await asyncio.sleep(0)
        reason = self._agreement.reason
        if reason is None:
            self._degraded_reasons.clear("registers")
        else:
            self._degraded_reasons.set("registers", reason)

    def _on_left(self, op: Left, writer: bytes) -> None:
        self._heartbeat.left(op)
        if writer.rpartition(b"/")[0] != op.replica.encode():
            self._heartbeat.fell_silent(op)
        if self._started_us is not None and op.replica == self._replica and op.at_us > self._started_us:
            if op.at_us != self._given_up_us:  # siblings may say it several times
                logger.warning(
                    "other replicas took this one for dead: it tells them its requests in flight again",
                    extra={"event": "replica.given_up", "replica": op.replica, "at_us": op.at_us},
                )
            self._given_up_us = op.at_us
            self._vectors.lost()
            if self._hooks.on_given_up is not None:
                self._hooks.on_given_up(op.at_us)

    def _declare_left(self, op: Left) -> None:
        logger.warning(
            "replica %s fell silent: its connections are lost, and its reservations are free again; see "
            "its own log and its pod",
            op.replica,
            extra={"event": "replica.left", "replica": op.replica, "at_us": op.at_us},
        )
        self._listener.replica_left(op.replica)
        self.publish(op)

    async def _snapshot_loop(self, commands: RedisLink, bulk: RedisLink) -> None:
        """Look every second whether a snapshot is due, and write it if no other replica does."""
        while True:
            try:
                await self._snapshot_tick(commands, bulk)
                self._degraded_reasons.clear("snapshot")
            except RedisRefused as error:
                self._degraded_reasons.set("snapshot", f"Redis refused the snapshot: {error}")
            except StateError:
                raise
            except Exception as error:
                # A mistake of ours: replicas share on without new snapshots, and it shows.
                if not self._degraded_reasons.has("snapshot"):
                    logger.exception("no snapshot can be written", extra={"event": "snapshot.failed"})
                self._degraded_reasons.set("snapshot", f"no snapshot can be written: {type(error).__name__}")
            await asyncio.sleep(SNAPSHOT_TICK_S * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    async def _snapshot_tick(self, commands: RedisLink, bulk: RedisLink) -> None:
        if await self._reader.vanished(commands):
            raise RedisLost("the log is gone from Redis")
        if not self._reader.ready.is_set():
            return
        if self._reader.marks > self._answered_marks:
            # A replica found that Redis has lost something: it may be our newest entries.
            self._answered_marks = self._reader.marks
            self._publisher.resend()
            self._must_disown = True
        self._disown()
        if not await self._keeper.look(commands, bulk):
            # Under load the log begins again before a replica finds it empty.
            self._server, self._must_disown = None, True
            raise RedisLost("the snapshot is gone from Redis")

    def _disown(self) -> None:
        """Release and reserve again all that is in flight here, if an end may not have reached all replicas.

        An end is lost when the full buffer drops it, when Redis loses it, and when it comes before a snapshot
        that a sibling starts from, which lists only what goes on. A former life under our id ended nothing.
        """
        dropped = self._publisher.dropped_ops
        if not self._must_disown and dropped == self._disowned_dropped:
            return
        if len(self._publisher) > self._rules.buffer_ops_max // 2:
            return  # it would be dropped itself; the next look tries again
        self._must_disown, self._disowned_dropped = False, dropped
        if self._hooks.on_given_up is not None:
            left = Left(self._replica, self._clock.now_us())
            self.publish(left)
            self._vectors.lost()
            self._hooks.on_given_up(left.at_us)


async def _server_process(link: RedisLink) -> bytes | None:
    """The ``run_id`` of the server process that answers; None if it does not tell."""
    try:
        lines = (await link.call("INFO", "server")).split(b"\r\n")
    except RedisRefused:
        return None
    return next((line for line in lines if line.startswith(b"run_id:")), None)


async def _report(loop: Coroutine[None, None, None], failed: asyncio.Future[Exception]) -> None:
    """Run a loop of a session; its failure ends the session, and is raised only there.

    (A `asyncio.TaskGroup` whose task fails hides a cancellation that comes at the same time.)
    """
    try:
        await loop
    except Exception as error:  # noqa: BLE001 - the top of a loop; the session raises it
        if not failed.done():
            failed.set_result(error)
