"""Users of a gateway: people who chat, agents, readers of long documents, bursts, and a trace.

All but the trace play sessions of `loadtest.workload`, each kind with a shape of its own: sessions of one
application share its system prompt and tools, and every turn repeats what came before. Each process has
sessions of its own.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

import gevent
from gevent.event import Event
from gevent.pool import Group
from locust import task
from urllib3 import PoolManager

from loadtest.client import Outcome
from loadtest.locusts.streaming import StreamingUser
from loadtest.replay import Turn
from loadtest.workload import AgentSession, TracedRequest, WorkloadShape, endless_sessions

CHAT = WorkloadShape(
    applications=6,
    system_tokens=(150, 600),
    tools=0,
    turns=(2, 6),
    task_tokens=120,
    wish_tokens=60,
    message_tokens_max=2000,
    output_tokens=(32, 160),
    tool_share=0.0,
    think_s=2.0,
)
LONG_CONTEXT = WorkloadShape(
    applications=2,
    system_tokens=(20_000, 40_000),
    tools=4,
    turns=(2, 4),
    task_tokens=6_000,
    message_tokens_max=16_000,
    tool_share=0.2,
    think_s=4.0,
)
BURST = WorkloadShape(
    applications=3, system_tokens=(1_500, 3_000), tools=0, turns=(1, 1), task_tokens=300, tool_share=0.0
)
CONNECTIONS_MAX = 1000
"""Kept open for the requests of a trace; more are made when they are needed, and closed after."""

BURST_REQUESTS = 8
BURST_PAUSE_S = 8.0


class SessionUser(StreamingUser):
    """Plays one session after the other, each to its end or its first failure.

    Attributes:
        sessions: Sessions of all users of this kind in this process; `draw` gives them out.
    """

    abstract = True
    shape: ClassVar[WorkloadShape]
    sessions: ClassVar[Iterator[AgentSession]]

    @classmethod
    def draw(cls, seed: str) -> None:
        """Give all users of this kind one supply of sessions; the same seed gives the same ones."""
        cls.sessions = endless_sessions(cls.shape, f"{seed}/{cls.kind}", cls.model)

    @task
    def session(self) -> None:
        """Play one session."""
        turns = next(self.sessions).turns()
        turn = next(turns)
        while True:
            gevent.sleep(turn.think_s)
            outcome = self.ask(turn)
            if outcome.error is not None:
                return
            try:
                turn = turns.send(outcome)
            except StopIteration:
                return


class ChatUser(SessionUser):
    """A person who chats: short prompts, a few turns, seconds between them."""

    weight = 5
    kind = "chat"
    shape = CHAT


class AgentUser(SessionUser):
    """An agent at work: long shared prompts and tools, growing contexts, hardly a pause."""

    weight = 4
    kind = "agent"
    shape = WorkloadShape()


class LongContextUser(SessionUser):
    """A person who asks about documents of 20,000 to 60,000 tokens."""

    weight = 1
    kind = "long context"
    shape = LONG_CONTEXT


class BurstUser(SessionUser):
    """A job that sends several requests at once, and then is quiet for a while."""

    weight = 1
    kind = "burst"
    shape = BURST

    @task
    def session(self) -> None:
        """One burst; the requests of one have no more in common than those of others."""
        burst = Group()
        for each in itertools.islice(self.sessions, BURST_REQUESTS):
            burst.spawn(self.ask, next(each.turns()))
        burst.join()
        gevent.sleep(BURST_PAUSE_S)


class TraceUser(StreamingUser):
    """A recorded trace, request by request at its times, however slow the answers are.

    One in each process sends every n-th request, reports the end and waits for the end of the run.

    Attributes:
        share: Of which process this is the user, and of how many.
    """

    abstract = True
    fixed_count = 1
    pool_manager = PoolManager(maxsize=CONNECTIONS_MAX)
    kind = "trace"
    requests: ClassVar[Sequence[TracedRequest]] = ()
    share: ClassVar[tuple[int, int]] = (0, 1)

    @task
    def replay(self) -> None:
        """Send this process's requests, and wait for the answers."""
        begun_s = time.perf_counter()
        number, count = self.share
        under_way = Group()
        for request in self.requests[number::count]:
            gevent.sleep(max(0.0, begun_s + request.start_s - time.perf_counter()))
            under_way.spawn(self._send, next(request.turns()))
        under_way.join()
        self.summary.finished += 1
        Event().wait()

    def _send(self, turn: Turn) -> Outcome:
        return self.ask(turn)
