"""Sends the tokens of a request's jobs to the socket, as fast as the client reads.

A stream that cannot be written now costs no memory: only the number of sent tokens is kept, and the rest goes
out as one chunk. A client that leaves takes its jobs out of the engine.
"""

from collections.abc import Callable, Sequence

from loadtest.engine.job import Job
from loadtest.engine.replies.reply import DONE, Reply
from loadtest.engine.served import ServedJob
from loadtest.engine.server import Answer


class Generation:
    """One request in the engine: a `Sink` for its jobs and the `Owner` of its answer.

    Args:
        stream: Send events as tokens come.
        error_body: Body of an error, from its status and text.
        opens: Open the stream before an error that comes in place of its first token.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        stream: bool,
        abort: Callable[[Job], None],
        error_body: Callable[[int, str], bytes],
        opens: bool = False,
    ) -> None:
        self._answer = answer
        self._stream = stream
        self._abort = abort
        self._error_body = error_body
        self._opens = opens
        self._failed = False
        self._reply: Reply | None = None
        self._jobs: Sequence[ServedJob] = ()
        self._sent: list[int] = []
        self._closed: list[bool] = []
        self._reasons: list[str | None] = []
        self._open = 0
        self._started = False
        answer.owner = self

    def begin(self, jobs: Sequence[ServedJob], reply: Reply) -> None:
        """Take over the jobs, which are then submitted."""
        self._jobs = jobs
        self._reply = reply
        self._sent = [0] * len(jobs)
        self._closed = [False] * len(jobs)
        self._reasons = [None] * len(jobs)
        self._open = len(jobs)

    def emitted(self, job: Job) -> None:
        """See `Sink`."""
        if self._stream:
            self._flush(self._jobs[job.index])

    def finished(self, job: Job, reason: str) -> None:
        """See `Sink`."""
        self._reasons[job.index] = reason
        if self._failed:
            return
        if self._stream:
            self._flush(self._jobs[job.index])
        elif None not in self._reasons:
            assert self._reply is not None
            reasons = [reason for reason in self._reasons if reason is not None]
            self._answer.send(200, self._reply.whole(reasons))

    def failed(self, job: Job, status: int, message: str) -> None:
        """See `Outcome`: one job that fails is the end of the request."""
        if self._failed:
            return
        self._failed = True
        body = self._error_body(status, message)
        if self._answer.streaming:
            assert self._reply is not None
            opening = self._reply.start() if self._opens and not self._started else b""
            self._answer.write(b"%sdata: %s\n\n%s" % (opening, body, DONE))
            self._answer.end()
        else:
            self._answer.send(status, body)
        for other in self._jobs:
            if other is not job:
                self._abort(other)

    def resume(self) -> None:
        """See `Owner`."""
        if self._stream:
            for job in self._jobs:
                self._flush(job)

    def client_left(self) -> None:
        """See `Owner`."""
        for job in self._jobs:
            self._abort(job)

    def _flush(self, job: ServedJob) -> None:
        """Send a job's new tokens, and the end of the stream behind the last one."""
        assert self._reply is not None
        index = job.index
        sent, now = self._sent[index], job.emitted_tokens
        reason = self._reasons[index]
        if (
            self._failed
            or self._closed[index]
            or (sent == now and reason is None)
            or not self._answer.admits()
        ):
            return
        data = b"" if self._started else self._reply.start()
        self._started = True
        self._sent[index] = now
        if reason is None:
            data += self._reply.delta(job, sent, now)
        else:
            data += self._reply.finish(job, sent, now, reason)
            self._closed[index] = True
            self._open -= 1
        if self._open:
            self._answer.write(data)
        else:
            self._answer.write(data + self._reply.end())
            self._answer.end()
