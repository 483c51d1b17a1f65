"""The present engine emulator behind the names of the coming engine model, until that is in.

A block hash (8 bytes) stands for two of the emulator's four-byte tokens, so one of its tokens stands for 32
of ours: capacity, speed and context are scaled by that. Lengths are right to 32 tokens.
"""

from typing import Protocol

import numpy as np

from loadtest.engine.cache import PrefixCache
from loadtest.engine.outputs import Output
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.service import Clock, Scheduler
from loadtest.engine.service import Job as EmulatedJob
from loadtest.engine.settings import EngineSettings

BLOCK_TOKENS = 64
TOKENS_EACH = 32


class Sink(Protocol):
    """Who waits for a job."""

    def emitted(self, job: "Job") -> None:
        """Tokens came."""

    def finished(self, job: "Job", reason: str) -> None:
        """It is over."""


class Job:
    """One request for the engine, and what became of it."""

    __slots__ = (
        "device_tokens",
        "emulated",
        "first_s",
        "host_tokens",
        "output_tokens",
        "pool_tokens",
        "prompt_tokens",
        "sink",
    )

    def __init__(
        self,
        blocks: bytes,
        prompt_tokens: int,
        output_tokens: int,
        final_blocks: bytes,
        final_tokens: int,
        sink: Sink,
        role: str = "plain",
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.sink = sink
        self.device_tokens = self.host_tokens = self.pool_tokens = 0
        rest = (prompt_tokens - len(blocks) // 8 * BLOCK_TOKENS) // TOKENS_EACH
        tokens = blocks + np.arange(rest, dtype="<u4").tobytes() if rest else blocks
        kept = final_blocks[len(blocks) :]
        answer = max(1, len(kept) // 4, output_tokens // TOKENS_EACH)
        self.emulated = EmulatedJob(tokens or b"\0\0\0\0", b"", Output(answer, kept=kept), self)

    @property
    def started_s(self) -> float:
        """When the prefill began."""
        return self.emulated.started_s

    def emitted(self, _job: EmulatedJob) -> None:
        """Tokens came."""
        if self.emulated.emitted_tokens == 1:
            self.device_tokens = self.emulated.cached_tokens * TOKENS_EACH
            self.first_s = self.emulated.first_s
            self.sink.emitted(self)

    def finished(self, _job: EmulatedJob, reason: str) -> None:
        """The answer is over."""
        self.device_tokens = self.emulated.cached_tokens * TOKENS_EACH
        self.first_s = self.emulated.first_s
        self.sink.finished(self, reason)


class _Silent:
    def left(self, job: EmulatedJob, reason: str, now_s: float) -> None:
        pass


class Worker:
    """One engine."""

    def __init__(self, profile: EngineProfile, clock: Clock) -> None:
        prefill, stretch = profile.prefill, profile.decode.stretch(16, 16 * 8192)
        settings = EngineSettings(
            cache_tokens=profile.pools.full_tokens * profile.dp_ranks // TOKENS_EACH,
            block_tokens=2,
            prefill_base_ms=(prefill.a_s + prefill.step_s) * 1e3,
            prefill_tokens_per_s=1 / prefill.b_s / TOKENS_EACH,
            context_tokens=prefill.c0_tokens / TOKENS_EACH,
            max_running=profile.max_running,
            tpot_ms=stretch.seconds(TOKENS_EACH) * 1e3,
        )
        self.cache = PrefixCache(settings.cache_tokens, settings.block_tokens)
        self.scheduler = Scheduler(settings, self.cache, clock, _Silent())

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.scheduler.submit(job.emulated)

    def abort(self, job: Job) -> None:
        """Drop a job."""
        self.scheduler.abort(job.emulated)

    def match_tokens(self, blocks: bytes, prompt_tokens: int) -> int:
        """What it would reuse now."""
        cache = self.cache
        root = cache._roots.get(b"")
        if root is None:
            return 0
        node, position, tokens = root, 0, blocks
        while position < len(tokens):
            child = node.children.get(tokens[position : position + 8])
            if child is None or not tokens.startswith(child.key, position):
                break
            position += len(child.key)
            node = child
        return min(position // 8 * BLOCK_TOKENS, (prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)

    @property
    def waiting(self) -> int:
        """Jobs not admitted yet."""
        return self.scheduler.waiting

    @property
    def running(self) -> int:
        """Jobs admitted."""
        return self.scheduler.running

    @property
    def busy_s(self) -> float:
        """Seconds of computation begun."""
        return self.scheduler.busy_s

    @property
    def held_tokens(self) -> int:
        """Tokens in the cache."""
        return self.cache.held_tokens * TOKENS_EACH


def build_worker(profile: EngineProfile, clock: Clock, **_: object) -> Worker:
    """Make an engine."""
    return Worker(profile, clock)
