"""One data-parallel rank: a KV cache, a queue, and its jobs.

An engine without data-parallel attention is one rank. With it, each rank has the attention, the KV memory and
the slots of its share of the GPUs; the time of a step is decided over all ranks (`loadtest.engine.timing`).
"""

from collections.abc import Iterator

from loadtest.engine.job import Job, State
from loadtest.engine.kv.stack import KvStack
from loadtest.engine.waiting import WaitingJobs


class Rank:
    """One rank, numbered from 0.

    Args:
        running_max: Jobs that may prefill or decode on it at the same time.
        preallocated: Jobs that may hold room beyond them until their KV has come and one of those has ended.
    """

    def __init__(
        self, number: int, stack: KvStack, waiting: WaitingJobs, running_max: int, preallocated: int = 0
    ) -> None:
        self.number = number
        self.cache = stack.cache
        self.tiers = stack.tiers
        self.waiting = waiting
        self.prefilling: list[Job] = []
        self.arriving: list[Job] = []
        self.held: list[Job] = []
        self.decoding = 0
        self.backlog_tokens = 0
        self.running_max = running_max
        self._preallocated = preallocated

    @property
    def running(self) -> int:
        """Jobs that have a slot."""
        return len(self.prefilling) + len(self.arriving) + self.decoding

    def uncached_tokens(self, job: Job) -> int:
        """Prompt tokens that it would have to compute if it ran here now."""
        return job.prompt_tokens - self.cache.match_tokens(job.blocks, job.prompt_tokens)

    def push(self, job: Job, uncached_tokens: int, now_s: float) -> None:
        """Take a job in; ``uncached_tokens`` estimates its work until it is admitted."""
        job.rank = self.number
        job.lease = self.cache.open(job.blocks, job.prompt_tokens, job.output_tokens, now_s, job.session)
        self._owe(job, uncached_tokens)
        self.waiting.push(job)

    def admit(self, now_s: float) -> Iterator[Job]:
        """Admit jobs for as long as there are slots and room."""
        for job in self.waiting.next(now_s):
            if self.running >= self.running_max + (self._preallocated if job.role == "decode" else 0):
                return
            if not self.cache.admit(job.lease, now_s):
                return
            self.waiting.remove(job)
            job.was_admitted = True
            job.started_s = now_s
            job.cached_tokens = job.lease.matched_tokens
            if job.role == "decode":
                job.state = State.ARRIVING
                self.arriving.append(job)
            else:
                job.state = State.PREFILLING
                job.context_tokens = job.cached_tokens
                self._owe(job, job.prompt_tokens - job.context_tokens)
                self.prefilling.append(job)
            yield job

    def compute(self, job: Job, tokens: int) -> None:
        """A chunk of a job's prompt is done."""
        job.context_tokens += tokens
        self._owe(job, job.prompt_tokens - job.context_tokens)

    def forget(self, job: Job) -> None:
        """A job leaves its place, wherever that is."""
        self._owe(job, 0)
        match job.state:
            case State.WAITING:
                self.waiting.remove(job)
            case State.PREFILLING:
                self.prefilling.remove(job)
            case State.ARRIVING:
                self.arriving.remove(job)
            case State.HELD:
                self.held.remove(job)
            case State.RUNNING:
                self.decoding -= 1
            case State.DONE:
                pass

    @property
    def idle(self) -> bool:
        """True if no job holds room: a job that finds none now never will."""
        return not (self.prefilling or self.arriving or self.held or self.decoding)

    def _owe(self, job: Job, tokens: int) -> None:
        self.backlog_tokens += tokens - job.backlog_tokens
        job.backlog_tokens = tokens
