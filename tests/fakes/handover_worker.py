"""A scheduler that does nothing by itself: the test says when a job has room, and when it ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.engine.job import Job, State
from loadtest.engine.outputs import NO_OUTPUT
from loadtest.engine.served import ServedJob


@dataclass
class FakeLease:
    device_tokens: int = 0
    host_tokens: int = 0
    pool_tokens: int = 0
    load_bytes: int = 0
    ready_s: float = 0.0

    @property
    def matched_tokens(self) -> int:
        return self.device_tokens + self.host_tokens


class FakeWorker:
    """Jobs by their last event."""

    def __init__(self, cached_tokens: int = 0) -> None:
        self.submitted: list[Job] = []
        self.delivered: list[Job] = []
        self.released: list[Job] = []
        self.aborted: list[Job] = []
        self._cached_tokens = cached_tokens

    def submit(self, job: Job) -> None:
        self.submitted.append(job)
        job.lease = FakeLease(self._cached_tokens)

    def admit(self, job: Job) -> None:
        """Give a decode job its room."""
        assert job.admitted is not None
        job.state = State.ARRIVING
        job.was_admitted = True
        job.cached_tokens = self._cached_tokens
        job.context_tokens = job.prompt_tokens
        job.admitted(job)

    def finish(self, job: Job) -> None:
        """End a job well."""
        if job.role != "decode":
            job.was_admitted = True
            job.cached_tokens = self._cached_tokens
            if job.admitted is not None:
                job.admitted(job)
        job.state = State.HELD if job.role == "prefill" else State.DONE
        job.context_tokens = job.prompt_tokens
        job.emitted_tokens = job.output_tokens
        job.sink.finished(job, job.reason)

    def deliver(self, job: Job) -> None:
        self.delivered.append(job)
        job.state = State.RUNNING

    def release(self, job: Job) -> None:
        assert job.state == State.HELD
        self.released.append(job)
        job.state = State.DONE

    def abort(self, job: Job) -> None:
        assert job in self.submitted
        assert job.state != State.HELD
        if job.state != State.DONE:
            self.aborted.append(job)
            job.state = State.DONE
            job.sink.finished(job, "abort")


class Heard:
    """Events that a client of its jobs would receive, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def emitted(self, job: Job) -> None:
        self.said.append(("emitted", job))

    def finished(self, job: Job, reason: str) -> None:
        self.said.append(("finished", job, reason))

    def failed(self, job: Job, status: int, message: str) -> None:
        self.said.append(("failed", job, status, message))


def served_job(outcome: Heard, *, tokens: int = 130, output: int = 1, id_: str = "r1") -> ServedJob:
    blocks = np.arange(tokens // 64, dtype="<u8").tobytes()
    return ServedJob(
        blocks=blocks,
        prompt_tokens=tokens,
        output_tokens=output,
        final_blocks=blocks,
        final_tokens=tokens + output - 1,
        sink=outcome,
        reason="length",
        id=id_,
        prompt=b"",
        output=NO_OUTPUT,
    )
