"""One streamed request, as reported to locust.

    POST        name of the endpoint   to the head of the answer; with its failures
    TTFT        kind of user           milliseconds to the first content
    TPOT        kind of user           mean gap between two events of a stream
    ITL max     kind of user           the longest of them
    completed   kind of user           the whole request; a failure is one that was begun and not completed

A rejected request (429, or 503 with Retry-After) has not failed: its user waits as long as asked, and it is
counted apart.
"""

import time
from typing import ClassVar

import gevent
import requests
from locust import HttpUser

from loadtest.client import Outcome, StreamedAnswer
from loadtest.locusts.summary import REJECTED, Summary
from loadtest.replay import Turn

TIMEOUT_S = 600.0
"""Longer than a gateway lets a request wait and an engine take for it."""

RETRY_S_MAX = 10.0
"""No user stays away for longer, so that the load comes back when a preset ends its peak."""

HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


class StreamingUser(HttpUser):
    """A user that streams answers; ``kind`` is its name in reports."""

    abstract = True
    kind: ClassVar[str]
    summary: ClassVar[Summary]
    model: ClassVar[str]
    headers: ClassVar[dict[str, str]] = HEADERS

    def ask(self, turn: Turn) -> Outcome:
        """Send one request and read its stream to the end."""
        answer = StreamedAnswer()
        retry_s = 0.0
        started_s = time.perf_counter()
        with self.client.post(
            turn.path,
            data=turn.body,
            headers=self.headers,
            stream=True,
            timeout=TIMEOUT_S,
            catch_response=True,
        ) as response:
            answer.status = response.status_code
            if response.error is not None:  # locust's words for an answer that never began
                answer.error = f"no answer: {response.error}"
            else:
                try:
                    for data in response.iter_content(chunk_size=None):
                        answer.feed(data, time.perf_counter())
                except requests.RequestException as error:
                    answer.error = f"the stream broke: {error}"
            outcome = answer.outcome(started_s, time.perf_counter())
            retry_after = response.headers.get("retry-after", "") if response.headers else ""
            if outcome.error is None or (outcome.status in REJECTED and retry_after.isdigit()):
                response.success()
                retry_s = min(float(retry_after or 0), RETRY_S_MAX) if outcome.error else 0.0
            else:
                response.failure(outcome.error)
        self._tell(outcome)
        if retry_s:
            gevent.sleep(retry_s)
        return outcome

    def _tell(self, outcome: Outcome) -> None:
        self.summary.add(self.kind, outcome)
        for what, seconds in (
            ("TTFT", outcome.ttft_s),
            ("TPOT", outcome.tpot_s),
            ("ITL max", outcome.itl_s_max),
        ):
            if seconds is not None:
                self._event(what, seconds)
        if outcome.status not in REJECTED:
            error = None if outcome.error is None else RuntimeError(outcome.error)
            self._event("completed", outcome.total_s, error)

    def _event(self, what: str, seconds: float, error: Exception | None = None) -> None:
        self.environment.events.request.fire(
            request_type=what,
            name=self.kind,
            response_time=seconds * 1000,
            response_length=0,
            exception=error,
            context={},
        )
