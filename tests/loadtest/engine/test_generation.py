"""Bytes on the socket, and their times; the socket is a fake that a test can block."""

from typing import Any

import pytest

from loadtest.engine.generation import Generation
from loadtest.engine.outputs import Output
from loadtest.engine.served import Extra, served_job


class FakeAnswer:
    def __init__(self) -> None:
        self.owner = None
        self.open = True
        self.streaming = False
        self.sent: list[Any] = []

    def admits(self) -> Any:
        return self.open

    def write(self, data: Any) -> None:
        self.sent.append(data)

    def send(self, status: Any, body: Any) -> None:
        self.sent.append((status, body))

    def end(self) -> None:
        self.sent.append("end")


class FakeReply:
    def start(self) -> Any:
        return b"<"

    def delta(self, job: Any, start: Any, end: Any) -> Any:
        return b"%d[%d:%d]" % (job.index, start, end)

    def finish(self, job: Any, start: Any, end: Any, reason: Any) -> Any:
        return b"%d[%d:%d]%s" % (job.index, start, end, reason.encode())

    def end(self) -> bytes:
        return b">"

    def whole(self, reasons: Any) -> Any:
        return ",".join(reasons).encode()


@pytest.fixture
def answer() -> Any:
    return FakeAnswer()


def begin(answer: Any, *, stream: bool, jobs: Any = 1, aborted: Any = None, opens: bool = False) -> Any:
    generation = Generation(
        answer,
        stream=stream,
        abort=(aborted if aborted is not None else []).append,
        error_body=lambda status, message: f"{status} {message}".encode(),
        opens=opens,
    )
    made = [
        served_job(b"abcd", Extra(), Output(9), generation, block_tokens=1, index=index)
        for index in range(jobs)
    ]
    generation.begin(made, FakeReply())
    return generation, made


def come(generation: Any, job: Any, tokens: Any, reason: Any = None) -> None:
    job.emitted_tokens = tokens
    if reason is None:
        generation.emitted(job)
    else:
        generation.finished(job, reason)


def test_a_stream_begins_with_its_first_token_and_ends_with_its_last_job(answer: Any) -> None:
    generation, (first, second) = begin(answer, stream=True, jobs=2)
    come(generation, first, 1)
    come(generation, second, 2, "stop")
    come(generation, first, 3, "length")

    assert answer.sent == [b"<0[0:1]", b"1[0:2]stop", b"0[1:3]length>", "end"]


def test_what_cannot_be_written_comes_as_one_chunk_later(answer: Any) -> None:
    generation, (job,) = begin(answer, stream=True)
    answer.open = False
    for tokens in (1, 2, 3):
        come(generation, job, tokens)
    assert answer.sent == []
    answer.open = True
    generation.resume()
    generation.resume()

    assert answer.sent == [b"<0[0:3]"]


def test_an_end_that_could_not_be_written_is_not_lost(answer: Any) -> None:
    generation, (job,) = begin(answer, stream=True)
    answer.open = False
    come(generation, job, 4, "stop")
    answer.open = True
    generation.resume()

    assert answer.sent == [b"<0[0:4]stop>", "end"]


def test_a_whole_answer_is_sent_when_all_jobs_are_done(answer: Any) -> None:
    generation, (first, second) = begin(answer, stream=False, jobs=2)
    come(generation, second, 1, "stop")
    come(generation, first, 1)
    generation.resume()
    assert answer.sent == []
    come(generation, first, 2, "length")

    assert answer.sent == [(200, b"length,stop")]


def test_a_client_that_leaves_takes_all_its_jobs_with_it(answer: Any) -> None:
    aborted: list[Any] = []
    generation, jobs = begin(answer, stream=True, jobs=2, aborted=aborted)
    generation.client_left()

    assert aborted == jobs


def test_a_job_that_fails_ends_the_request_with_its_error(answer: Any) -> None:
    aborted: list[Any] = []
    generation, jobs = begin(answer, stream=False, jobs=3, aborted=aborted)
    generation.failed(jobs[1], 500, "no KV")
    for job in (jobs[0], jobs[2]):
        generation.finished(job, "abort")
    generation.failed(jobs[2], 500, "again")

    assert answer.sent == [(500, b"500 no KV")]
    assert aborted == [jobs[0], jobs[2]]


@pytest.mark.parametrize(("opens", "before"), [(True, b"<"), (False, b"")])
def test_a_stream_that_fails_before_its_first_token_may_open_first(
    answer: Any, opens: bool, before: bytes
) -> None:
    """Chat streams of vLLM 0.32 open first."""
    generation, (job,) = begin(answer, stream=True, opens=opens)
    answer.streaming = True
    generation.failed(job, 500, "no KV")

    assert answer.sent == [before + b"data: 500 no KV\n\ndata: [DONE]\n\n", "end"]


def test_a_stream_that_has_begun_ends_with_an_error_event(answer: Any) -> None:
    generation, (job,) = begin(answer, stream=True)
    come(generation, job, 1)
    answer.streaming = True
    generation.failed(job, 500, "no KV")
    come(generation, job, 2)
    generation.resume()

    assert answer.sent[-2:] == [b"data: 500 no KV\n\ndata: [DONE]\n\n", "end"]
