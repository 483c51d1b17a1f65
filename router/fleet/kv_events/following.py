"""Follows the KV events of workers, each by one replica, and publishes the blocks of their engines.

    registry ──whose turn?──> Follower per place  ── every 50 ms: read, tell ──> the shared log
                                  └── sockets that are idle wake the loop

One loop per replica, started by `router.app`. The replica in turn (`policies.turn_of`) follows a worker; when
it dies, another asks the publishers for all batches since their start. Two followers of one worker say the
same for a moment. While the log takes no operations (Redis is gone), changes are coalesced in the residency.

A worker is followed if its labels name its events, or if its engine does and its prompts are identified by
token ids: other events match no prompt. With ``fleet.kv_events`` off workers are given back to history.
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

from policies import DP_SIZE_LABEL, Tracked, Worker
from radix import RANKS_MAX, parsed_whole
from radix.residency import Residency
from router.destinations import Destinations
from router.engines import DIALECTS
from router.engines.sources import Source
from router.errors import ClientError
from router.fleet.asking import page
from router.fleet.core import Core
from router.fleet.kv_events.follower import Follower
from router.fleet.kv_sources import EVENTS_LABEL, REPLAY_LABEL, host_of, judge, labelled, port_of
from router.fleet.local_worker import LocalWorker
from router.metric_families import KV_EVENT_BLOCKS, KV_EVENT_LAG, KV_EVENT_STATE
from router.metrics import Sample

if TYPE_CHECKING:
    import zmq

logger = logging.getLogger(__name__)

TICK_S = 0.05
"""Seconds for which events are gathered: an age that predictions may have anyway, for a twentieth of the
operations that events alone would make."""

SLICE_S = 0.002
"""Seconds after which the loop gives way."""

LOOK_S = 1.0
"""Seconds between two looks at turns and connections."""

SOON_S, AGAIN_S = 2.0, 60.0
"""First and longest pause before an engine without usable events is asked again; an engine that is busy
starting may not answer in time."""

ASKING_AT_ONCE = 4
"""Answers of publishers that are read at a time; each may be 10,000 batches."""

READS_MAX = 64
"""Reads of a worker until the others have their turn."""

BUFFERED_OPS_MAX = 10_000
"""Operations that the log has not taken beyond which no more are published: requests' operations go first."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingRules:
    """Workers to follow, if `on`.

    The operator chose where the workers `named` in the settings publish; `timeout_s` is for an engine's
    answer.
    """

    on: bool
    named: frozenset[str]
    timeout_s: float


class KvEvents:
    """The loop.

    `root_of` returns the root of the token ids that an engine caches under a model's name and a salt;
    `identifies` returns True if prompts for a model are identified by token ids.
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
        self.core = core
        self.on = rules.on
        self.replica = core.log.replica
        self.followers: dict[str, Follower] = {}
        self._client = client
        self._destinations = destinations
        self._rules = rules
        self._root_of = root_of
        self._identifies = identifies
        self._now_unix_s = now_unix_s
        self._closed_counts: Counter[str] = Counter()
        self._keys: dict[str, tuple[object, ...]] = {}
        self._retry_us: dict[str, int] = {}
        self._pause_s: dict[str, float] = {}
        self._readable: dict[str, Follower] = {}
        self._turn_to_compare: list[Follower] = []
        self._wake = asyncio.Event()
        self._asking = asyncio.Semaphore(ASKING_AT_ONCE)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._group: asyncio.TaskGroup  # set by `run`

    def counts(self) -> Counter[str]:
        """Batches, events, losses and operations since the start, by name."""
        return sum((follower.counts() for follower in self.followers.values()), Counter(self._closed_counts))

    def samples(self) -> Iterator[Sample]:
        """Metrics of the workers that this replica follows."""
        for worker_id, follower in sorted(self.followers.items()):
            yield KV_EVENT_BLOCKS, (worker_id,), follower.blocks
            yield KV_EVENT_STATE, (worker_id, follower.state.value), 1
            if follower.lag_s is not None:
                yield KV_EVENT_LAG, (worker_id,), follower.lag_s

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
                    await self._pause(look_s - time.monotonic())
        finally:
            for worker_id in list(self.followers):
                self._drop(worker_id)
            if self._context is not None:
                self._context.destroy(linger=0)
                self._context = None

    async def _pause(self, seconds: float) -> None:
        if self._readable:
            await asyncio.sleep(TICK_S)
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _round(self) -> None:
        readable, self._readable = self._readable, {}
        pace = _Pace()
        for worker_id, follower in readable.items():
            busy = False
            for _ in range(READS_MAX):
                if self.followers.get(worker_id) is not follower or not follower.read(self._start):
                    break
                busy = True
                await pace.pause()
            if self.followers.get(worker_id) is not follower:
                continue
            if self.core.log.status().buffered_ops > BUFFERED_OPS_MAX or follower.flush() or busy:
                self._readable[worker_id] = follower
            else:
                follower.arm()
            await pace.pause()

    def _compare(self) -> None:
        """Compare one worker's part of the tree with its engine's blocks; each in turn."""
        if not self._turn_to_compare:
            self._turn_to_compare = list(self.followers.values())
        if self._turn_to_compare:
            follower = self._turn_to_compare.pop()
            if self.followers.get(follower.worker_id) is follower:
                follower.compare()

    async def _look(self) -> None:
        wanted = {
            place.worker_id: (local, place)
            for local, place in self.core.registry.places()
            if self._wants(local, place)
        }
        for worker_id in [key for key in self.followers if key not in wanted]:
            self._drop(worker_id)
        now_us = self.core.log.now_us()
        pace = _Pace()
        for worker_id, (local, place) in wanted.items():
            await pace.pause()
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
                follower = self.followers[worker_id] = self._follower(local, place)
                self._retry_us[worker_id] = now_us
            if not follower.feeds and now_us >= self._retry_us[worker_id]:
                pause_s = self._pause_s.get(worker_id, SOON_S)
                self._pause_s[worker_id] = min(2 * pause_s, AGAIN_S)
                self._retry_us[worker_id] = now_us + round(pause_s * 1e6)
                self._start(self._open(follower), f"kv events {worker_id}")
            follower.check(self._start)
        for worker_id in self._untracked():
            self.core.log.publish(Tracked(worker_id, now_us, self.replica, exact=False))

    def _wants(self, local: LocalWorker, place: Worker) -> bool:
        if not self.on or not local.models or self.core.turn(place.worker_id):
            return False
        return bool(local.worker.labels.get(EVENTS_LABEL)) or self._identifies(self._model_of(local))

    def _untracked(self) -> list[str]:
        """Workers tracked by no replica, if it is this replica's turn to publish that."""
        fleet = self.core.fleet
        ids = [fleet.at_slot(slot).worker_id for slot in fleet.evidence.exact]
        return sorted(each for each in ids if each not in self.followers and not self.core.turn(each))

    def _follower(self, local: LocalWorker, place: Worker) -> Follower:
        def root_of(lora: str, salt: str) -> int | None:
            if not lora:
                return self._root_of(self._model_of(local), salt)
            serves = any(served.model_id == lora for served in local.models or ())
            return self._root_of(lora, salt) if serves else None

        return Follower(
            local,
            place,
            self.core,
            Residency(self.core.fleet.rules.block_tokens, root_of),
            now_unix_s=self._now_unix_s,
            woken=self._woken,
        )

    @staticmethod
    def _moved(follower: Follower) -> bool:
        """True if a worker with a host name has been away for so long that its address may have changed."""
        names = [feed.source.endpoint for feed in follower.feeds if feed.endpoint != feed.source.endpoint]
        return bool(names) and follower.deaf_s > AGAIN_S

    def _model_of(self, local: LocalWorker) -> str:
        """Name under which a worker caches requests without an adapter."""
        base = next((served.model_id for served in local.models or () if not served.parent), "")
        return self.core.registry.cached_as(base) if base else ""

    def _drop(self, worker_id: str) -> None:
        follower = self.followers.pop(worker_id, None)
        if follower is not None:
            self._closed_counts.update(follower.counts())
            follower.close()
        self._readable.pop(worker_id, None)
        self._keys.pop(worker_id, None)
        self._retry_us.pop(worker_id, None)
        self._pause_s.pop(worker_id, None)

    def begin_anew(self) -> None:
        """Follow every worker from the beginning: the roots of prompts are others now."""
        for worker_id in list(self.followers):
            self._drop(worker_id)

    def _start(self, work: Coroutine[None, None, None], name: str) -> "asyncio.Task[None]":
        return self._group.create_task(work, name=name)

    # Publishers of a worker

    async def _open(self, follower: Follower) -> None:
        try:
            rank, sources = follower.place.rank, await self._sources(follower.local)
            if rank >= 0:
                sources = tuple(source for source in sources if source.rank == rank)
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
        """Find a worker's publishers by its labels or engine; may raise `ClientError`."""
        worker = local.worker
        labelled_ranks = parsed_whole(worker.labels.get(DP_SIZE_LABEL, ""), RANKS_MAX) or 1
        ranks = max(worker.ranks, labelled_ranks)
        sources = labelled(worker.labels, ranks)
        by_engine = not sources
        for dialect in DIALECTS.values() if by_engine else ():
            for path in dialect.event_pages if local.engine in ("", dialect.name) else ():
                sources = sources or dialect.event_sources(
                    await page(self._client, worker.url + path, self._rules.timeout_s), worker.url
                )
        host = urlsplit(worker.url).hostname
        for source in sources:
            if by_engine and host not in _LOOPBACK and host_of(source.endpoint) is None:
                raise ClientError(
                    f"its engine publishes in a file of its own machine, {source.endpoint}",
                    code="kv_events_elsewhere",
                )
            if by_engine or worker.worker_id not in self._rules.named:
                judge(source, self._destinations.check_host)
        return sources

    async def _addresses(self, source: Source) -> tuple[str, str | None]:
        endpoint = source.endpoint if source.listens else await self._address(source.endpoint)
        return endpoint, None if source.replay is None else await self._address(source.replay)

    async def _address(self, endpoint: str) -> str:
        host = host_of(endpoint)
        if host is None:
            return endpoint
        port = port_of(endpoint)
        address = (await self._destinations.resolve(host, port))[0]
        return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"

    def _woken(self, follower: Follower) -> None:
        self._readable[follower.worker_id] = follower
        self._wake.set()


class _Pace:
    """Gives way when a slice of time is used up."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + SLICE_S

    async def pause(self) -> None:
        if time.monotonic() > self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = time.monotonic() + SLICE_S
