"""The jobs of one rank that are not admitted yet, and their order.

| order | who is next | where it comes from |
|---|---|---|
| ``fcfs`` | who came first | default of SGLang and vLLM |
| ``lpm`` | who matches most; who came first beyond 128 waiting | SGLang ``schedule_policy.py``, ``lpm`` |
| ``uncached`` | smallest ``arrival + k·s``, s the seconds of its uncached work | MiMo-V2.5 4.2; theory E4 |

A match changes while a job waits, so ``lpm`` and ``uncached`` look again at every step, as SGLang does, at
the first 128 jobs only: each costs a walk through the tree. A job whose prefetch is not over is passed over
(SGLang ``check_prefetch_progress``). One without room holds up those behind it, or large requests would
starve.
"""

from collections.abc import Callable, Iterator
from math import inf

from loadtest.engine.job import Job

_LOOKED_AT = 128
"""SGLang falls back to first come, first served beyond 128 waiting (``schedule_policy.py``)."""

Key = Callable[[Job], float]


class WaitingJobs:
    """A queue of one rank; ``key`` orders it at every step, None by arrival.

    ``arrival_beyond``: more than 128 waiting go by arrival, all of them.
    """

    def __init__(self, key: Key | None = None, *, arrival_beyond: bool = False) -> None:
        self._key = key
        self._arrival_beyond = arrival_beyond
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def push(self, job: Job) -> None:
        """A job has come."""
        self._jobs.append(job)

    def remove(self, job: Job) -> None:
        """A job leaves: admitted or aborted."""
        self._jobs.remove(job)

    def next(self, now_s: float) -> Iterator[Job]:
        """Jobs in the order of admission; ends if one that it gave out was not removed."""
        key = self._key
        if key is None or (self._arrival_beyond and len(self._jobs) > _LOOKED_AT):
            position = 0
            while position < len(self._jobs):
                job = self._jobs[position]
                if job.lease.ready_s > now_s:
                    position += 1
                    continue
                yield job
                if position < len(self._jobs) and self._jobs[position] is job:
                    return
        else:
            ready = [job for job in self._jobs[:_LOOKED_AT] if job.lease.ready_s <= now_s]
            # Sorting is stable: equals stay in order of arrival.
            for job in sorted(ready, key=key):
                before = len(self._jobs)
                yield job
                if len(self._jobs) == before:
                    return

    def ready_s(self, now_s: float) -> float:
        """End of the first prefetch, if all of them wait for one; infinity if not."""
        first_s = inf
        for job in self._jobs:
            if job.lease.ready_s <= now_s:
                return inf
            first_s = min(first_s, job.lease.ready_s)
        return first_s
