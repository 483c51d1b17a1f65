"""The decode batch of an engine: all running requests get tokens at the same rate.

One number, the *progress*, counts the tokens that each member has got since the engine began. A member that
joins at progress p and wants n more tokens ends at p + n, which no later event changes:

    progress  --------+---------------------+---------+----->     a heap of ends: join, leave O(log n)
                 joins at p            ends at p+n    next end

Progress follows time by a `Stretch` until a member joins or leaves or, with several data-parallel ranks,
another rank becomes the slowest. A second heap has the moments, every ``release_tokens``, at which a member
releases KV outside its window.

Where a request's first tokens are slower (`DecodeTiming.slow_tokens`), progress counts tokens at full speed,
and such a token takes several of them. Its context then counts as up to 230 tokens too long.
"""

import heapq
from collections.abc import Iterator
from math import inf

from loadtest.engine.job import Job
from loadtest.engine.timing import DecodeTiming, Stretch

_GRACE_TOKENS = 1e-6
"""Rounding of progress: a millionth of a token early is on time."""


class DecodeBatch:
    """Members of all ranks.

    Args:
        release_tokens: Decoded tokens after which a member's window is due; 0: never.

    Attributes:
        progress: Tokens that a member would have got if it had run since the engine began.
    """

    def __init__(self, timing: DecodeTiming, ranks: int, release_tokens: int) -> None:
        self._timing = timing
        self._release_tokens = release_tokens
        self.progress = 0.0
        self._requests = [0] * ranks
        self._kv_tokens = [0.0] * ranks
        self._members: dict[Job, None] = {}
        self._ends: list[tuple[float, int, Job]] = []
        self._releases: list[tuple[float, int, Job]] = []
        self._joins = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._members)

    def __contains__(self, job: Job) -> bool:
        return job in self._members

    def requests(self, rank: int) -> int:
        """Members of one rank."""
        return self._requests[rank]

    def join(self, job: Job, tokens: int) -> None:
        """Take in a job that wants ``tokens`` more, > 0."""
        self._members[job] = None
        job.joined = self.progress
        self._requests[job.rank] += 1
        self._kv_tokens[job.rank] += job.prompt_tokens + 1
        self._joins += 1
        end = self.progress + self._timing.full_speed_tokens(tokens)
        heapq.heappush(self._ends, (end, self._joins, job))
        if self._release_tokens and tokens > self._release_tokens:
            heapq.heappush(self._releases, (self.progress + self._release_tokens, self._joins, job))

    def leave(self, job: Job) -> None:
        """Let a member go."""
        del self._members[job]
        self._requests[job.rank] -= 1
        self._kv_tokens[job.rank] -= job.prompt_tokens + 1 + self.progress - job.joined
        if not self._requests[job.rank]:
            self._kv_tokens[job.rank] = 0.0

    def got(self, job: Job) -> int:
        """Whole tokens that a member has got since it joined."""
        return int(self._timing.tokens_of(self.progress - job.joined) + _GRACE_TOKENS)

    def beside_s(self) -> float:
        """Seconds that one decode step of the slowest rank adds to a prefill step."""
        ranks = len(self._requests)
        pairs = zip(self._requests, self._kv_tokens, strict=True)
        return max(self._timing.beside_s(n, kv, ranks) for n, kv in pairs)

    def step(self) -> None:
        """One decode step was part of a prefill step."""
        if self._members:
            self._move(self._timing.mtp_speedup)

    def run(self, seconds: float) -> None:
        """Decode for some seconds."""
        if not self._members:
            return
        for stretch, limit in self._stretches():
            needed_s = stretch.seconds(limit) if limit < inf else inf
            if needed_s > seconds:
                self._move(stretch.tokens(seconds))
                return
            self._move(limit)
            seconds -= needed_s

    def seconds_until(self, tokens: float) -> float:
        """Seconds until every member has got ``tokens`` more; the batch must not be empty."""
        total_s = 0.0
        for stretch, limit in self._stretches():
            if tokens <= limit:
                return total_s + stretch.seconds(tokens)
            total_s += stretch.seconds(limit)
            tokens -= limit
        raise AssertionError("the last stretch has no end")

    def tokens_in(self, seconds: float) -> float:
        """Tokens that every member will get in about ``seconds``, at the present rate."""
        stretch, _ = next(self._stretches())
        return stretch.tokens(seconds)

    def tokens_to(self, progress: float) -> float:
        """Tokens until progress is there; 0 if it is."""
        missing = progress - self.progress
        return missing if missing > _GRACE_TOKENS else 0.0

    def tokens_to_end(self) -> float:
        """Tokens until the next member ends."""
        while self._ends[0][2] not in self._members:
            heapq.heappop(self._ends)
        return self.tokens_to(self._ends[0][0])

    def ended(self) -> Iterator[Job]:
        """Members that have all their tokens; they stay until they `leave`."""
        while self._ends and self._ends[0][0] <= self.progress + _GRACE_TOKENS:
            job = heapq.heappop(self._ends)[2]
            if job in self._members:
                yield job

    def released(self) -> Iterator[Job]:
        """Members whose window is due."""
        while self._releases and self._releases[0][0] <= self.progress + _GRACE_TOKENS:
            due, order, job = heapq.heappop(self._releases)
            if job not in self._members:
                continue
            periods = max(0, (self.progress - due) // self._release_tokens) + 1
            heapq.heappush(self._releases, (due + periods * self._release_tokens, order, job))
            yield job

    def _move(self, tokens: float) -> None:
        self.progress += tokens
        for rank, requests in enumerate(self._requests):
            self._kv_tokens[rank] += requests * tokens

    def _stretches(self) -> Iterator[tuple[Stretch, float]]:
        """Yield the slowest rank's stretch from now on, and for how many tokens that rank is the slowest.

        Steps grow linearly with progress, each rank's at its own rate, so the slowest rank is the upper
        envelope of straight lines.
        """
        ranks = len(self._requests)
        lines = [
            self._timing.stretch(n, kv, ranks) for n, kv in zip(self._requests, self._kv_tokens, strict=True)
        ]
        slowest = max(lines, key=lambda line: (line.step_s, line.growth_s))
        done = 0.0
        while True:
            limit, successor = inf, slowest
            for line in lines:
                if line.growth_s > slowest.growth_s:
                    crossing = (slowest.step_s - line.step_s) / (line.growth_s - slowest.growth_s)
                    if crossing < limit:
                        limit, successor = crossing, line
            begun = slowest.step_s + slowest.growth_s * done
            yield Stretch(begun, slowest.growth_s, slowest.tokens_per_step), limit - done
            slowest, done = successor, limit
