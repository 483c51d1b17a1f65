"""The engines of a simulation, and the link between those that prefill and those that decode.

plain     one worker prefills and decodes
split     a prefill worker computes the first token, its KV blocks cross the link layer by layer, and a decode
          worker goes on; the answer begins when they are there (SGLang: the decode leg streams)
"""

from collections.abc import Sequence
from functools import partial

from loadtest.engine.profiles import EngineProfile
from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.interim import Worker, build_worker
from loadtest.simulator.links import Link
from policies import WorkerPut


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
        build = partial(build_worker, profile, clock)
        self.profile = profile
        self.clock = clock
        self.workers: Sequence[Worker] = [build() for _ in range(workers)]
        self.decode_workers: Sequence[Worker] = [build() for _ in range(decode_workers)]
        handover = profile.handover
        self.link = Link(clock, handover.bytes_per_s, handover.latency_s)

    @property
    def _worker_tokens(self) -> int:
        return self.profile.pools.full_tokens * self.profile.dp_ranks

    @property
    def capacity_tokens(self) -> int:
        """KV capacity of all workers that take requests."""
        return len(self.workers) * self._worker_tokens

    def puts(self, at_us: int) -> list[WorkerPut]:
        """The workers as the log describes them, in the order of their slots; those that only decode last."""
        role = "prefill" if self.decode_workers else "plain"
        roles = [role] * len(self.workers) + ["decode"] * len(self.decode_workers)
        capacity_tokens = self._worker_tokens
        return [
            WorkerPut(
                f"worker-{slot:03d}",
                at_us,
                "",
                f"http://worker-{slot:03d}",
                role,
                draining=False,
                capacity_tokens=capacity_tokens,
            )
            for slot, role in enumerate(roles)
        ]

    def best_match_tokens(self, blocks: bytes, prompt_tokens: int) -> int:
        """What the best of the workers would reuse now: the engines' own answer, no belief."""
        return max([worker.match_tokens(blocks, prompt_tokens) for worker in self.workers])
