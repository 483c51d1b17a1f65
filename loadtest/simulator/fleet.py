"""The engines of a simulation, and the link between those that prefill and those that decode.

    plain     one worker prefills and decodes
    split     a prefill worker computes the prompt, its KV crosses the link layer by layer, and a decode
              worker goes on; the answer begins when it is there (SGLang: the decode leg streams)

All workers are alike, and so are all that decode. With length buckets each worker that takes requests belongs
to one, by its label; those that only decode take any length.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from loadtest.engine.build import build_shared_pool, build_worker
from loadtest.engine.job import Job
from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.scheduler import Scheduler
from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.links import Link
from policies import BUCKET_LABEL, WorkerPut


class NoObserver:
    """In a simulation requests keep their own books."""

    def left(self, job: Job, reason: str, now_s: float) -> None:
        """See `loadtest.engine.scheduler.Observer`."""


def capacity_tokens(
    profile: EngineProfile, workers: int, host: HiCacheSettings | None = None, l3: L3Settings | None = None
) -> int:
    """Tokens that so many workers can hold, with the pool that they share.

    Host memory holds a copy of what is on the device, so the larger of the two counts.
    """
    rank_tokens = profile.rules.full_tokens
    if host is not None:
        rank_tokens = max(rank_tokens, host.host_tokens or int(rank_tokens * host.host_ratio))
    pool_tokens = l3.nodes * (l3.memory_tokens + l3.disk_tokens) if l3 is not None else 0
    return workers * profile.dp_ranks * rank_tokens + pool_tokens


class Fleet:
    """All workers.

    Args:
        profile: What they are.
        clock: Virtual time.
        workers: How many take requests: plain ones, or those that prefill.
        decode_workers: How many only decode; 0 if the others do it themselves.
        host: Host memory of those that prefill; None for none.
        l3: The pool that they share; None for none.

    Attributes:
        pool: That pool.
        capacity_tokens: See `capacity_tokens`, of the workers that take requests.
        workers: Those that take requests.
        decode_workers: Those that only decode.
        places: Where each worker id is in its list.
    """

    def __init__(
        self,
        profile: EngineProfile,
        clock: VirtualClock,
        workers: int,
        decode_workers: int,
        host: HiCacheSettings | None = None,
        l3: L3Settings | None = None,
    ) -> None:
        build = partial(build_worker, profile, clock, observer=NoObserver())
        self.profile = profile
        self.clock = clock
        self.pool = build_shared_pool(profile, l3) if l3 is not None else None
        caching = partial(build_worker, replace(profile, host_tier=host), clock, observer=NoObserver())
        self.workers: Sequence[Scheduler] = [caching(pool=self.pool) for _ in range(workers)]
        self.decode_workers: Sequence[Scheduler] = [build() for _ in range(decode_workers)]
        self.capacity_tokens = capacity_tokens(profile, workers, host, l3)
        self.places = {
            f"{kind}-{place:03d}": place
            for kind, count in (("worker", workers), ("decode", decode_workers))
            for place in range(count)
        }
        handover = profile.handover
        self.link = Link(clock, handover.bytes_per_s, handover.latency_s)

    def puts(self, at_us: int, buckets: Sequence[str] = ()) -> list[WorkerPut]:
        """The workers as the log describes them; those that only decode come last.

        Args:
            at_us: Log time.
            buckets: Name of the bucket of each worker that takes requests; empty without buckets.
        """
        role = "prefill" if self.decode_workers else "plain"
        roles = [role] * len(self.workers) + ["decode"] * len(self.decode_workers)
        labels = [{BUCKET_LABEL: name} for name in buckets]
        labels += [{}] * (len(roles) - len(labels))
        device_tokens = capacity_tokens(self.profile, 1)
        return [
            WorkerPut(
                worker_id,
                at_us,
                "",
                f"http://{worker_id}",
                role,
                draining=False,
                capacity_tokens=device_tokens,
                labels=label,
            )
            for worker_id, role, label in zip(self.places, roles, labels, strict=True)
        ]

    def reach_tokens(
        self, blocks: bytes, prompt_tokens: int, first: int, enough_tokens: int
    ) -> tuple[int, int]:
        """What the best worker could reuse of a prompt now, and the most that any holds, reusable or not.

        The engines' own answer, no belief. With many ranks it costs more than all the rest of a request, so
        workers are asked only until one has enough.

        Args:
            blocks: Of the prompt.
            prompt_tokens: Its length.
            first: Worker to ask first.
            enough_tokens: No worker can have more.
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
