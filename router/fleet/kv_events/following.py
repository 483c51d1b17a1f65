"""Follows the KV events of workers, each by one replica, and tells all replicas what their engines hold.

    registry ──whose turn?──> Follower per worker ── every 50 ms: read, tell ──> the shared log
                                  └── sockets that are idle wake the loop

One loop per replica, started by `router.app`. A worker is followed by the replica whose turn it is
(`policies.turn_of`): nothing is agreed upon. When a replica dies its workers are taken over as soon as its
heartbeat has expired; who takes over asks the publishers for what they said since they started. Two who
follow one worker for a moment say the same, which harms nobody.

Sockets are read when their file descriptor says so, and then every `TICK_S` until there is nothing more:
what comes within a tick is read at once and told as few operations. So that nobody waits for this, the loop
gives way every `SLICE_S`. While the log does not take what is told (Redis is gone), nothing more is said;
what changes meanwhile is coalesced where it is kept.

A worker is followed if its labels say where its events are, or if its engine says so and its prompts are
identified by token ids. Of others it would be told what no prompt can match, and its history not be kept in
bounds.

With ``fleet.kv_events`` off nobody is followed, and who was is given back to history.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from policies import DP_SIZE_LABEL, Tracked, turn_of
from radix import RANKS_MAX, Residency, parsed_whole
from router.destinations import Destinations
from router.engines import DIALECTS
from router.engines.sources import Source
from router.errors import ClientError
from router.fleet.core import Core
from router.fleet.kv_events.follower import Follower
from router.fleet.kv_sources import (
    EVENTS_LABEL,
    REPLAY_LABEL,
    host_of,
    judge,
    labelled,
    port_of,
)
from router.fleet.local_worker import LocalWorker
from router.fleet.pages import page
from router.metric_families import KV_EVENT_BLOCKS, KV_EVENT_LAG, KV_EVENT_STATE
from router.metrics import Sample

if TYPE_CHECKING:
    import zmq

logger = logging.getLogger(__name__)

TICK_S = 0.05
"""How long what comes is gathered before it is told: as old as a prediction may be anyway, and a twentieth of
the operations that events alone would make."""

SLICE_S = 0.002
"""The loop gives way after so long."""

LOOK_S = 1.0
"""How often it is seen whose turn it is, and what became of connections."""

SOON_S, AGAIN_S = 2.0, 60.0
"""An engine that says nothing of events, or whose endpoint cannot be used, is asked again: soon at first,
since one that is busy starting may not answer in time, and then ever less often."""

ASKING_AT_ONCE = 4
"""Answers of publishers that are read at a time; each may be 10,000 batches."""

READS_MAX = 64
"""Reads of a worker until the others have their turn."""

BUFFERED_OPS_MAX = 10_000
"""With so many operations that the log has not taken, nothing more is said: what requests say goes first."""

TURNS_MAX = 10_000
"""Workers whose turn is remembered."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingRules:
    """Whom to follow.

    Attributes:
        on: Whether anybody is followed at all.
        named: Ids of the workers that the settings name; where these publish is the operator's will.
        timeout_s: An engine that takes longer does not answer.
    """

    on: bool
    named: frozenset[str]
    timeout_s: float


class KvEvents:
    """The loop.

    Args:
        core: The fleet.
        client: Asks engines where they publish.
        destinations: Where the gateway connects to.
        rules: Whom to follow.
        root_of: Root of the token ids that an engine caches under a model's name and a salt.
        identifies: Whether prompts for a model are identified by token ids.
        now_unix_s: Wall clock, to say how late events are.
    """

    def __init__(
        self,
        core: Core,
        client: httpx.AsyncClient,
        destinations: Destinations,
        rules: FollowingRules,
        *,
        root_of: Callable[[str, str], int],
        identifies: Callable[[str], bool],
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.on = rules.on
        self.replica = core.log.replica
        self._now_unix_s = now_unix_s
        self.followers: dict[str, Follower] = {}
        self._registry = core.registry
        self._fleet = core.fleet
        self._client = client
        self._publish = core.log.publish
        self._now_us = core.log.now_us
        self._replicas = core.log.replicas
        self._status = core.log.status
        self._root_of = root_of
        self._identifies = identifies
        self._named = rules.named
        self._check_host = destinations.check_host
        self._resolve = destinations.resolve
        self._timeout_s = rules.timeout_s
        self._past: Counter[str] = Counter()
        self._alive: tuple[str, ...] = ()
        self._turns: dict[str, int] = {}
        self._keys: dict[str, tuple[object, ...]] = {}
        self._again_us: dict[str, int] = {}
        self._pause_s: dict[str, float] = {}
        self._hot: dict[str, Follower] = {}
        self._turn_to_compare: list[Follower] = []
        self._wake = asyncio.Event()
        self._asking = asyncio.Semaphore(ASKING_AT_ONCE)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._group: asyncio.TaskGroup | None = None

    def counts(self) -> Counter[str]:
        """What came and happened since the start, by name."""
        return sum((follower.counts() for follower in self.followers.values()), Counter(self._past))

    def samples(self) -> Iterator[Sample]:
        """What metrics read of the workers that this replica follows."""
        for worker_id, follower in sorted(self.followers.items()):
            yield KV_EVENT_BLOCKS, (worker_id,), follower.blocks
            yield KV_EVENT_STATE, (worker_id, follower.state.value), 1
            if follower.lag_s is not None:
                yield KV_EVENT_LAG, (worker_id,), follower.lag_s

    def turn(self, worker_id: str) -> int:
        """How many replicas come before this one at a worker."""
        alive = self._replicas()
        if alive != self._alive or len(self._turns) > TURNS_MAX:
            self._alive = alive
            self._turns.clear()
        turn = self._turns.get(worker_id)
        if turn is None:
            turn = self._turns[worker_id] = turn_of(worker_id, self.replica, alive)
        return turn

    async def run(self) -> None:
        """Follow until cancelled."""
        if self.on:
            import zmq

            self._context = zmq.Context()
            self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
        try:
            async with asyncio.TaskGroup() as self._group:
                look_s = 0.0
                while True:
                    now_s = time.monotonic()
                    if now_s >= look_s:
                        look_s = now_s + LOOK_S
                        await self._look()
                    await self._round()
                    self._compare()
                    pause_s = TICK_S if self._hot else look_s - time.monotonic()
                    await self._pause(pause_s)
        finally:
            for worker_id in list(self.followers):
                self._drop(worker_id)
            if self._context is not None:
                self._context.destroy(linger=0)
                self._context = None

    async def _pause(self, seconds: float) -> None:
        """Wait, less long if a socket that was idle has something."""
        if self._hot:
            await asyncio.sleep(seconds)
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _round(self) -> None:
        """Read what has come, and tell what follows."""
        hot, self._hot = self._hot, {}
        pace = _Pace()
        for worker_id, follower in hot.items():
            busy = False
            for _ in range(READS_MAX):
                if self.followers.get(worker_id) is not follower or not follower.read(self._start):
                    break
                busy = True
                await pace.kept()
            if self.followers.get(worker_id) is not follower:
                continue
            if self._status().buffered_ops > BUFFERED_OPS_MAX or follower.flush() or busy:
                self._hot[worker_id] = follower
            else:
                follower.arm()
            await pace.kept()

    def _compare(self) -> None:
        """Compare one worker's part of the tree with what its engine holds; each in turn."""
        if not self._turn_to_compare:
            self._turn_to_compare = list(self.followers.values())
        if self._turn_to_compare:
            follower = self._turn_to_compare.pop()
            if self.followers.get(follower.worker_id) is follower:
                follower.compare()

    async def _look(self) -> None:
        """See whose turn it is, and what became of those that are followed."""
        wanted = {local.worker.worker_id: local for local in self._registry.all() if self._wants(local)}
        for worker_id in [key for key in self.followers if key not in wanted]:
            self._drop(worker_id)
        now_us = self._now_us()
        pace = _Pace()
        for worker_id, local in wanted.items():
            await pace.kept()
            key = (
                local.worker.url,
                *map(local.worker.labels.get, (EVENTS_LABEL, REPLAY_LABEL, DP_SIZE_LABEL)),
            )
            follower = self.followers.get(worker_id)
            if self._keys.get(worker_id) != key or (follower is not None and self._moved(follower)):
                self._drop(worker_id)
                follower = None
            if follower is None:
                self._keys[worker_id] = key
                follower = self.followers[worker_id] = self._follower(local)
                self._again_us[worker_id] = now_us
            if not follower.feeds and now_us >= self._again_us[worker_id]:
                pause_s = self._pause_s.get(worker_id, SOON_S)
                self._pause_s[worker_id] = min(2 * pause_s, AGAIN_S)
                self._again_us[worker_id] = now_us + round(pause_s * 1e6)
                self._start(self._open(follower), f"kv events {worker_id}")
            follower.look(self._start)
        for worker_id in self._untracked():
            self._publish(Tracked(worker_id, now_us, self.replica, exact=False))

    def _wants(self, local: LocalWorker) -> bool:
        """Whether this replica follows a worker."""
        if not self.on or local.models is None or not local.models or self.turn(local.worker.worker_id):
            return False
        return bool(local.worker.labels.get(EVENTS_LABEL)) or self._identifies(self._model_of(local))

    def _untracked(self) -> list[str]:
        """Workers that are said to be followed and are by nobody, if it is this replica's turn to say so."""
        ids = [self._fleet.at_slot(slot).worker_id for slot in self._fleet.evidence.exact]
        return sorted(each for each in ids if each not in self.followers and not self.turn(each))

    def _follower(self, local: LocalWorker) -> Follower:
        def root_of(lora: str, salt: str) -> int | None:
            if not lora:
                return self._root_of(self._model_of(local), salt)
            known = any(served.model_id == lora for served in local.models or ())
            return self._root_of(lora, salt) if known else None

        return Follower(
            local,
            self._fleet,
            Residency(self._fleet.rules.block_tokens, root_of),
            publish=self._publish,
            now_us=self._now_us,
            now_unix_s=self._now_unix_s,
            replica=self.replica,
            woken=self._woken,
        )

    @staticmethod
    def _moved(follower: Follower) -> bool:
        """Whether a worker may have another address by now: it has been away for long, and has a name."""
        names = [feed.source.endpoint for feed in follower.feeds if feed.endpoint != feed.source.endpoint]
        return bool(names) and follower.deaf_s > AGAIN_S

    def _model_of(self, local: LocalWorker) -> str:
        """Under which name a worker caches what is asked of no adapter."""
        base = next((served.model_id for served in local.models or () if not served.parent), "")
        return self._registry.cached_as(base) if base else ""

    def _drop(self, worker_id: str) -> None:
        follower = self.followers.pop(worker_id, None)
        if follower is not None:
            self._past.update(follower.counts())
            follower.close()
        self._hot.pop(worker_id, None)
        self._keys.pop(worker_id, None)
        self._again_us.pop(worker_id, None)
        self._pause_s.pop(worker_id, None)

    def begin_anew(self) -> None:
        """Follow every worker from the beginning: the roots of prompts are others now."""
        for worker_id in list(self.followers):
            self._drop(worker_id)

    def _start(self, work: Coroutine[None, None, None], name: str) -> "asyncio.Task[None]":
        assert self._group is not None
        return self._group.create_task(work, name=name)

    # Where a worker publishes.

    async def _open(self, follower: Follower) -> None:
        """Find a worker's publishers and subscribe."""
        try:
            sources = await self._sources(follower.local)
            places = [(source, *await self._addresses(source)) for source in sources]
            if self.followers.get(follower.worker_id) is follower and self._context is not None:
                follower.open(self._context, places, self._asking)
        except ClientError as error:
            follower.refuse(str(error))
        except OSError as error:
            follower.refuse(f"{type(error).__name__}: {error}")
        except Exception:
            logger.exception(
                "following KV events failed inside the gateway",
                extra={"event": "kv_events.crashed", "worker_id": follower.worker_id},
            )

    async def _sources(self, local: LocalWorker) -> tuple[Source, ...]:
        """Where a worker publishes, as its labels say, or its engine.

        Raises:
            ClientError: A label is no endpoint, or the gateway does not connect there.
        """
        worker = local.worker
        ranks = parsed_whole(worker.labels.get(DP_SIZE_LABEL, ""), RANKS_MAX) or 1
        sources = labelled(worker.labels, ranks)
        told = not sources
        for dialect in DIALECTS.values() if told else ():
            for path in dialect.event_pages if local.engine in ("", dialect.name) else ():
                sources = sources or dialect.event_sources(
                    await page(self._client, worker.url + path, self._timeout_s), worker.url
                )
        host = urlsplit(worker.url).hostname
        for source in sources:
            if told and host not in _LOOPBACK and host_of(source.endpoint) is None:
                raise ClientError(
                    f"its engine publishes in a file of its own machine, {source.endpoint}",
                    code="kv_events_elsewhere",
                )
            if told or worker.worker_id not in self._named:
                judge(source, self._check_host)
        return sources

    async def _addresses(self, source: Source) -> tuple[str, str | None]:
        """Where a source and its old batches are, as addresses that the gateway connects to.

        Raises:
            OSError: A name cannot be resolved, or leads where no workers may be.
        """
        endpoint = source.endpoint if source.listens else await self._address(source.endpoint)
        return endpoint, None if source.replay is None else await self._address(source.replay)

    async def _address(self, endpoint: str) -> str:
        host = host_of(endpoint)
        if host is None:
            return endpoint
        port = port_of(endpoint)
        address = (await self._resolve(host, port))[0]
        return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"

    def _woken(self, follower: Follower) -> None:
        self._hot[follower.worker_id] = follower
        self._wake.set()


class _Pace:
    """Gives way when a slice of time is used up."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + SLICE_S

    async def kept(self) -> None:
        """Go on at once, or after the others."""
        if time.monotonic() > self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = time.monotonic() + SLICE_S
