"""The engines of a simulation, and the link between those that prefill and those that decode.

    plain     one worker prefills and decodes
    split     a prefill worker computes the prompt, its KV crosses the link layer by layer, and a decode
              worker goes on; the answer begins when it is there (SGLang: the decode leg streams)

All workers are alike, and so are all that decode; the log knows them by their slots.
"""

from collections.abc import Sequence
from functools import partial

from loadtest.engine.build import build_worker
from loadtest.engine.job import Job
from loadtest.engine.kv.cache import KvCache
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.scheduler import Scheduler
from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.links import Link
from policies import WorkerPut


class NoObserver:
    """In a simulation requests keep their own books."""

    def left(self, job: Job, reason: str, now_s: float) -> None:
        """See `loadtest.engine.scheduler.Observer`."""


class Fleet:
    """All workers.

    Args:
        profile: What they are.
        clock: Virtual time.
        workers: How many take requests: plain ones, or those that prefill.
        decode_workers: How many only decode; 0 if the others do it themselves.
    """

    def __init__(
        self, profile: EngineProfile, clock: VirtualClock, workers: int, decode_workers: int
    ) -> None:
        build = partial(build_worker, profile, clock, observer=NoObserver())
        self.profile = profile
        self.clock = clock
        self.workers: Sequence[Scheduler] = [build() for _ in range(workers)]
        self.decode_workers: Sequence[Scheduler] = [build() for _ in range(decode_workers)]
        handover = profile.handover
        self.link = Link(clock, handover.bytes_per_s, handover.latency_s)

    @property
    def _worker_tokens(self) -> int:
        return self.profile.rules.full_tokens * self.profile.dp_ranks

    @property
    def capacity_tokens(self) -> int:
        """KV capacity of all workers that take requests."""
        return len(self.workers) * self._worker_tokens

    def puts(self, at_us: int) -> list[WorkerPut]:
        """The workers as the log describes them, in the order of their slots; those that only decode last."""
        role = "prefill" if self.decode_workers else "plain"
        roles = [role] * len(self.workers) + ["decode"] * len(self.decode_workers)
        return [
            WorkerPut(
                f"worker-{slot:03d}",
                at_us,
                "",
                f"http://worker-{slot:03d}",
                role,
                draining=False,
                capacity_tokens=self._worker_tokens,
            )
            for slot, role in enumerate(roles)
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
