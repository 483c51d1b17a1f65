"""Agents' sessions for locust, against any OpenAI-compatible server.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:30000 --headless -u 20 -r 5 -t 30s

Every user plays one session of the built-in workload after the other (`loadtest.workload`): streamed
answers, tool turns, growing contexts, think times. No two sessions are the same, but those of one
application share its system prompt and tools. Besides the whole requests locust reports ``TTFT`` and
``TPOT`` (mean gap between chunks) as requests of their own, in milliseconds.
"""

import time
from collections.abc import Iterator
from typing import Any

import requests
from locust import HttpUser, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtest.client import Outcome, StreamedAnswer
from loadtest.replay import Turn
from loadtest.workload import MODEL, AgentSession, WorkloadShape, endless_sessions

TIMEOUT_S = 60.0

HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


def add_arguments(parser: LocustArgumentParser, **_: Any) -> None:
    """Add our own options to locust's."""
    parser.add_argument("--model", default=MODEL, help="model to ask for")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same sessions")


def draw_sessions(environment: Environment, **_: Any) -> None:
    """Give all users of this process one supply of sessions."""
    options = environment.parsed_options
    assert options is not None
    AgentUser.sessions = endless_sessions(WorkloadShape(), options.seed, options.model)


class AgentUser(HttpUser):
    """One agent at work."""

    sessions: Iterator[AgentSession]

    @task
    def session(self) -> None:
        """Play one session to its end, or to its first failure."""
        turns = next(self.sessions).turns()
        turn = next(turns)
        while True:
            time.sleep(turn.think_s)  # locust has patched it: other users go on
            outcome = self._send(turn)
            if outcome.error is not None:
                return
            try:
                turn = turns.send(outcome)
            except StopIteration:
                return

    def _send(self, turn: Turn) -> Outcome:
        answer = StreamedAnswer()
        started_s = time.perf_counter()
        with self.client.post(
            turn.path, data=turn.body, headers=HEADERS, stream=True, timeout=TIMEOUT_S, catch_response=True
        ) as response:
            answer.status = response.status_code
            try:
                for data in response.iter_content(chunk_size=None):
                    answer.feed(data, time.perf_counter())
            except requests.RequestException as error:
                answer.error = f"the stream broke: {error}"
            outcome = answer.outcome(started_s, time.perf_counter())
            if outcome.error is not None:
                response.failure(outcome.error)
        self._report("TTFT", turn.path, outcome.ttft_s)
        self._report("TPOT", turn.path, outcome.tpot_s)
        return outcome

    def _report(self, kind: str, path: str, seconds: float | None) -> None:
        if seconds is not None:
            self.environment.events.request.fire(
                request_type=kind,
                name=path,
                response_time=seconds * 1000,
                response_length=0,
                exception=None,
                context={},
            )


events.init_command_line_parser.add_listener(add_arguments)  # type: ignore[no-untyped-call]
events.test_start.add_listener(draw_sessions)  # type: ignore[no-untyped-call]
