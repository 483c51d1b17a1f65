"""The built-in workload: same seed, same bytes; growing, shared prefixes."""

import itertools
import json
from typing import Any

from loadtest.client import Outcome, ToolCall
from loadtest.engine.tokens import TOKEN_BYTES
from loadtest.replay import Turn
from loadtest.traces import PromptText, TraceRequest
from loadtest.workload import QUICK, AgentSession, TracedRequest, WorkloadShape, agent_sessions


def answer(body: Any) -> Outcome:
    """Answer as an engine would: a tool call where it is required, else text."""
    tools: tuple[ToolCall, ...] = ()
    if body["tool_choice"] == "required":
        tools = (ToolCall("call_1", body["tools"][0]["function"]["name"], '{"path":"abcd"}'),)
    return Outcome(
        ttft_s=0.1,
        tpot_s=0.1,
        itl_s_max=0.1,
        total_s=1.0,
        prompt_tokens=1,
        cached_tokens=0,
        output_tokens=4 if tools else body["max_tokens"],
        status=200,
        error=None,
        worker="",
        text="" if tools else "yes " * body["max_tokens"],
        tool_calls=tools,
    )


def play(session: AgentSession) -> list[Turn]:
    generator = session.turns()
    turns = [next(generator)]
    while True:
        try:
            turns.append(generator.send(answer(json.loads(turns[-1].body))))
        except StopIteration:
            return turns


def test_the_same_seed_gives_the_same_bytes_in_whatever_order_sessions_run() -> None:
    forwards = [play(session) for session in agent_sessions(QUICK, 5)]
    backwards = [play(session) for session in reversed(agent_sessions(QUICK, 5))]

    assert forwards == backwards[::-1]
    assert forwards != [play(session) for session in agent_sessions(QUICK, 6)]


def test_sessions_start_in_order_within_the_window_and_keep_their_number_of_turns() -> None:
    sessions = agent_sessions(QUICK, 1)

    starts = [session.start_s for session in sessions]
    assert starts == sorted(starts)
    assert 0 <= starts[0] <= starts[-1] <= QUICK.start_window_s
    for session in sessions:
        assert len(play(session)) == session.turn_count
        assert QUICK.turns[0] <= session.turn_count <= QUICK.turns[1]


def test_every_turn_repeats_all_that_came_before_and_adds_to_it() -> None:
    for session in agent_sessions(QUICK, 2):
        turns = play(session)
        for before, after in itertools.pairwise(turns):
            old, new = json.loads(before.body)["messages"], json.loads(after.body)["messages"]
            assert new[: len(old)] == old
            assert len(new) > len(old)
            # All but the opening of the answer is the beginning of the next prompt.
            assert after.prompt.startswith(before.prompt)
            assert len(before.prompt) <= after.held_bytes < len(after.prompt)


def test_a_tool_call_is_answered_by_a_tool_message_with_its_id() -> None:
    seen = 0
    for session in agent_sessions(QUICK, 3):
        for turn in play(session):
            messages = json.loads(turn.body)["messages"]
            for call, result in itertools.pairwise(messages):
                if result["role"] == "tool":
                    seen += 1
                    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
                    assert call["content"] is None
    assert seen > 0


def test_sessions_of_one_application_share_system_prompt_and_tools() -> None:
    shape = WorkloadShape(sessions=12, applications=2)
    firsts = [json.loads(next(session.turns()).body) for session in agent_sessions(shape, 4)]

    distinct = {json.dumps([first["messages"][0], first["tools"]]) for first in firsts}
    tasks = {first["messages"][1]["content"] for first in firsts}
    assert len(distinct) == 2
    assert len(tasks) == 12


def test_the_working_set_exceeds_one_engine_and_fits_four() -> None:
    """The demo's engines hold 280,000 tokens each (`loadtest.demo`): the comparison rests on that."""
    last = [play(session)[-1] for session in agent_sessions(WorkloadShape(), 1)]
    applications = {turn.prompt[:4000]: 0 for turn in last}

    working_set = sum(len(turn.prompt) for turn in last) // TOKEN_BYTES

    assert len(applications) == WorkloadShape().applications
    assert 280_000 < working_set < 4 * 280_000


def test_a_row_of_a_trace_is_one_completion_of_its_length() -> None:
    request = TracedRequest(TraceRequest(30.0, 700, 900, (3, 4)), 10.0, 500, PromptText(1))

    (turn,) = list(request.turns())

    body = json.loads(turn.body)
    assert request.start_s == 3.0
    assert request.turn_count == 1
    assert body["prompt"].encode() == turn.prompt
    assert len(turn.prompt) == 700 * TOKEN_BYTES
    assert body["max_tokens"] == 500
