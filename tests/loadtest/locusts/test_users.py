"""The users of a run. Locust is imported in a process of its own: it patches all."""

import subprocess
import sys
from textwrap import dedent

import pytest

PREAMBLE = """
from gevent import monkey; monkey.patch_all()
import json, gevent
from types import SimpleNamespace
from loadtest.client import Outcome
from loadtest.locusts import users
from loadtest.locusts.users import *
from loadtest.traces import PromptText, TraceRequest

def made(kind, seed="1"):
    kind.model, kind.asked = "m", []
    kind.host = "http://127.0.0.1:1"
    if hasattr(kind, "draw"):
        kind.draw(seed)
    def ask(self, turn):
        self.asked.append(json.loads(turn.body))
        error = "enough" if len(self.asked) >= 12 else None
        return Outcome(0.1, 0.01, 0.02, 1.0, 100, 60, 10, 200, error, "", "answer", ())
    kind.ask = ask
    kind.summary = SimpleNamespace(finished=0)
    return kind(SimpleNamespace(host=kind.host, events=SimpleNamespace(request=None)))

gevent.sleep = lambda seconds=0: None
"""


@pytest.mark.parametrize(
    "code",
    [
        # Turns of a session repeat the turns before.
        """
        user = made(ChatUser)
        user.session()
        first, second = user.asked[:2]
        assert second["messages"][: len(first["messages"])] == first["messages"]
        assert "tools" not in first and made(AgentUser).asked == []
        """,
        # An agent has tools, and one that fails stops there.
        """
        user = made(AgentUser)
        for _ in range(20):
            if len(user.asked) < 12:
                user.session()
        assert len(user.asked) == 12
        assert user.asked[0]["tools"]
        """,
        # A reader's prompts are long ones.
        """
        user = made(LongContextUser)
        user.session()
        assert len(json.dumps(user.asked[0])) > 80_000
        """,
        # The same seed gives the same prompts, another process others.
        """
        bodies = []
        for seed in ("1", "1", "1/1"):
            user = made(ChatUser, seed)
            user.session()
            bodies.append(user.asked[0])
        assert bodies[0] == bodies[1] != bodies[2]
        """,
        # A burst is several requests of several sessions.
        """
        user = made(BurstUser)
        user.session()
        assert len(user.asked) == users.BURST_REQUESTS
        assert len({json.dumps(body) for body in user.asked}) == users.BURST_REQUESTS
        """,
        # Each process sends its share of a trace, and says when it is answered.
        """
        rows = [TraceRequest(0.0, 512 * (row + 1), 8, tuple(range(row + 1))) for row in range(5)]
        requests = [users.TracedRequest(row, 1.0, 4, PromptText(1), "mine") for row in rows]
        lengths = []
        for number in range(2):
            user = made(TraceUser)
            user.requests, user.share = requests, (number, 2)
            gevent.spawn(user.replay).join(1)
            lengths.append([len(body["prompt"]) // 2048 for body in user.asked])
            assert {body["model"] for body in user.asked} == {"mine"}
            assert user.summary.finished == 1
        assert [sorted(each) for each in lengths] == [[1, 3, 5], [2, 4]]
        """,
    ],
)
def test_of_users(code: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PREAMBLE + dedent(code)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
