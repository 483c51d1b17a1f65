"""The engines of a simulation, and the link between those that prefill and those that decode.

    plain     one worker prefills and decodes
    split     a prefill worker computes the prompt, its KV crosses the link layer by layer, and a decode
              worker goes on; the answer begins when it is there (SGLang: the decode leg streams)

Without groups all workers of a role are equal. Groups have profiles of one model each, and stand at sites,
between which KV takes a link. With length buckets each worker that takes requests belongs to one, by its
label; those that only decode take any length. Convertible workers do both, as the log says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from math import inf

from loadtest.engine.build import build_shared_pool, build_worker
from loadtest.engine.job import Role
from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.l3 import Absence, L3Pool, L3Settings
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.scheduler import Observer, Scheduler
from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.links import Link
from loadtest.simulator.site_links import LinkPlan, SiteLink
from policies import (
    BUCKET_LABEL,
    CONVERTIBLE_LABEL,
    RUNNING_MAX_LABEL,
    SITE_LABEL,
    HostMemory,
    WorkerPut,
)

CLASS_LABEL = "worker_class"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """Workers that are equal.

    Attributes:
        name: Begins their ids.
        profile: Its name is their worker class.
        count: > 0.
        role: At the start, if they are convertible.
        convertible: The slow loop may have them prefill or decode.
    """

    name: str
    profile: EngineProfile
    count: int
    role: Role = "plain"
    site: str = ""
    convertible: bool = False

    @property
    def labels(self) -> dict[str, str]:
        """Labels that an operator would give them."""
        labels = {CLASS_LABEL: self.profile.name, SITE_LABEL: self.site}
        if self.role == "decode" or self.convertible:
            labels[RUNNING_MAX_LABEL] = str(self.profile.max_running + self.profile.preallocated)
        if self.convertible:
            labels[CONVERTIBLE_LABEL] = "true"
        return labels


def capacity_tokens(
    profile: EngineProfile, workers: int, host: HiCacheSettings | None = None, l3: L3Settings | None = None
) -> int:
    """Tokens that ``workers`` can hold, with the pool that they share.

    Host memory holds a copy of the device's content, so the larger of the two counts; if it is written back,
    it holds what the device does not.
    """
    rank_tokens = profile.rules.full_tokens
    if host is not None:
        host_tokens = host.host_tokens or int(rank_tokens * host.host_ratio)
        writes_back = host.write_policy == "write_back"
        rank_tokens = rank_tokens + host_tokens if writes_back else max(rank_tokens, host_tokens)
    pool_tokens = l3.nodes * (l3.memory_tokens + l3.disk_tokens) if l3 is not None else 0
    return workers * profile.dp_ranks * rank_tokens + pool_tokens


class Fleet:
    """All workers.

    Args:
        workers: Number that take requests: plain ones, or those that prefill.
        decode_workers: Number that only decode; 0 if the others do it themselves.
        host: Host memory of those that prefill; None for none.
        l3: The pool that they share; None for none.
        groups: All workers, instead of those numbers.
        links: Between their sites, as ``FROM>TO``.

    Attributes:
        capacity_tokens: See `capacity_tokens`, of the workers that take requests.
        workers: Those that take requests, or may.
        decode_workers: Those that decode what others prefilled, or may.
        places: Index of each worker id in ``workers``.
        decode_places: Index of each worker id in ``decode_workers``.
        link: Between workers of one site.
    """

    def __init__(
        self,
        profile: EngineProfile,
        clock: VirtualClock,
        workers: int,
        decode_workers: int,
        host: HiCacheSettings | None = None,
        l3: L3Settings | None = None,
        groups: Sequence[WorkerGroup] = (),
        links: Mapping[str, LinkPlan] = {},
    ) -> None:
        build = partial(build_worker, clock=clock, observer=Observer())
        self.profile = profile
        self.clock = clock
        self.pool = build_shared_pool(profile, l3) if l3 is not None else None
        self._labelled = len(groups) > 0
        self._host = host
        if not groups:
            taking: Role = "prefill" if decode_workers else "plain"
            groups = [WorkerGroup(name="worker", profile=profile, count=workers, role=taking)]
            if decode_workers:
                groups.append(
                    WorkerGroup(name="decode", profile=profile, count=decode_workers, role="decode")
                )
        self._groups = sorted(groups, key=lambda group: group.role == "decode")
        self.workers: list[Scheduler] = []
        self.decode_workers: list[Scheduler] = []
        self.places: dict[str, int] = {}
        self.decode_places: dict[str, int] = {}
        self._sites: tuple[list[str], list[str]] = ([], [])
        sizes = cycle(l3.tensor_parallel) if l3 is not None and l3.tensor_parallel else None
        decode_pool = self.pool if l3 is not None and l3.decode_writes else None
        for group in self._groups:
            takes, decodes = group.role != "decode" or group.convertible, group.role == "decode"
            for number in range(group.count):
                worker_id, worker = f"{group.name}-{number:03d}", group.profile
                if sizes is not None:
                    worker = replace(worker, tensor_parallel=next(sizes))
                engine = (
                    build(replace(worker, host_tier=host), pool=self.pool)
                    if takes
                    else build(worker, pool=decode_pool, decodes=True)
                )
                if takes:
                    self.places[worker_id] = len(self.workers)
                    self._sites[0].append(group.site)
                    self.workers.append(engine)
                if decodes or group.convertible:
                    self.decode_places[worker_id] = len(self.decode_workers)
                    self._sites[1].append(group.site)
                    self.decode_workers.append(engine)
        taking_groups = [group for group in groups if group.role != "decode" or group.convertible]
        self.capacity_tokens = sum(
            capacity_tokens(group.profile, group.count, host) for group in taking_groups
        )
        if l3 is not None:
            self.capacity_tokens += capacity_tokens(profile, 0, None, l3)
        handover = profile.handover
        self.link = Link(clock, handover.bytes_per_s, handover.latency_s)
        self.links = {name: SiteLink(clock, plan) for name, plan in links.items()}
        if self.pool is not None and l3 is not None:
            for absence in l3.absences:
                self._schedule(self.pool, absence)

    def _schedule(self, pool: L3Pool, absence: Absence) -> None:
        """Let a node of the pool leave, and return if it ever does."""

        def leave() -> None:
            if absence.how == "planned":
                pool.drain(absence.node, self.clock.time())
            else:
                pool.fail(absence.node, self.clock.time(), lost=absence.how == "lost")

        self.clock.call_at(absence.leaves_s, leave)
        if absence.returns_s < inf:
            self.clock.call_at(absence.returns_s, lambda: pool.recover(absence.node, self.clock.time()))

    def pool_figures(self) -> dict[str, float]:
        """Use of the shared pool over the whole run, bytes and counts; empty without one."""
        if self.pool is None:
            return {}
        tiers = [rank.tiers for worker in self.workers for rank in worker.ranks if rank.tiers is not None]
        clients = [tier.client for tier in tiers if tier.client is not None]
        moved = self.pool.node_bytes
        return {
            "pool_read_bytes": sum(client.read_bytes for client in clients),
            "pool_held_bytes": self.pool.held_bytes,
            "pool_evicted_bytes": self.pool.evicted_bytes,
            "pool_moved_bytes": self.pool.moved_bytes,
            "pool_imbalance": max(moved) * len(moved) / max(sum(moved), 1),
            "prefetches": sum(tier.counters.prefetches for tier in tiers),
            "prefetches_stopped": sum(tier.counters.prefetches_stopped for tier in tiers),
            "prefetch_dropped_tokens": sum(tier.counters.dropped_tokens for tier in tiers),
        }

    def link_between(self, worker: int, decode_worker: int) -> SiteLink | None:
        """The link that KV takes from a worker to one that decodes; None if both stand at one site."""
        begins, ends = self._sites[0][worker], self._sites[1][decode_worker]
        return None if begins == ends else self.links[f"{begins}>{ends}"]

    def puts(
        self, at_us: int, buckets: Sequence[str] = (), *, dp_aware: bool = True
    ) -> list[WorkerPut | HostMemory]:
        """The workers as the log describes them, those that only decode last.

        ``buckets`` names those of the others. If ``dp_aware``, their ranks are told. Host memory is told as
        the gateway reads it from an engine's description (`router.engines.sglang`).
        """
        taken = iter(buckets)
        puts: list[WorkerPut | HostMemory] = [
            WorkerPut(
                f"{group.name}-{number:03d}",
                at_us,
                "",
                f"http://{group.name}-{number:03d}",
                group.role,
                draining=False,
                capacity_tokens=capacity_tokens(group.profile, 1),
                labels=self._labels(group, next(taken, "") if group.role != "decode" else ""),
                ranks=group.profile.dp_ranks if dp_aware else 0,
            )
            for group in self._groups
            for number in range(group.count)
        ]
        if self._host is None:
            return puts
        return puts + [
            HostMemory(f"{group.name}-{number:03d}", at_us, "", capacity_tokens(group.profile, 1, self._host))
            for group in self._groups
            for number in range(group.count)
            if group.role != "decode"
        ]

    def _labels(self, group: WorkerGroup, bucket: str) -> dict[str, str]:
        labels = group.labels if self._labelled else {}
        return labels | ({BUCKET_LABEL: bucket} if bucket else {})

    def reach_tokens(
        self, blocks: bytes, prompt_tokens: int, first: int, enough_tokens: int
    ) -> tuple[int, int]:
        """Reuse of a prompt by the best worker now, and the most that any holds, reusable or not.

        The engines' own answer, no belief. With many ranks it costs more than all the rest of a request, so
        workers are asked, from ``first`` on, only until one has ``enough_tokens``, the most that any can
        have.
        """
        reused = held = 0
        for worker in (self.workers[first], *self.workers):
            for rank in worker.ranks:
                cache = rank.cache
                assert isinstance(cache, KvCache)
                here = cache.reach_tokens(blocks, prompt_tokens)
                reused, held = max(reused, here[0]), max(held, here[1])
            if reused >= enough_tokens:
                break
        return reused, held
