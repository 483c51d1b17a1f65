"""Recorded sessions of agents as a closed loop."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.simulator.agentic import read_agentic
from loadtest.simulator.workload import SimRequest, Workload
from loadtest.traces import TraceError


def entry(
    t: float, tokens: int, ids: list[int], *, out: int = 10, took_s: float | None = 1.0
) -> dict[str, Any]:
    return {"t": t, "type": "s", "model": "m", "in": tokens, "out": out, "hash_ids": ids, "api_time": took_s}


def agent(end_s: float, duration_s: float | None, *requests: dict[str, Any]) -> dict[str, Any]:
    return {
        "t": end_s,
        "type": "subagent",
        "duration_ms": None if duration_s is None else duration_s * 1000,
        "requests": requests,
        "models": ["small"],
        "tool_tokens": 64,
        "system_tokens": 0,
    }


def session(name: str, *requests: dict[str, Any], tools: int = 0, model: str = "m") -> dict[str, Any]:
    return {
        "id": name,
        "block_size": 64,
        "models": [model],
        "tool_tokens": tools,
        "system_tokens": 0,
        "requests": requests,
    }


def read(tmp_path: Path, *sessions: dict[str, Any], **options: Any) -> Workload:
    path = tmp_path / "agents.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in sessions))
    workload = read_agentic(path, **options)
    workload.check()
    return workload


def requests_of(tmp_path: Path, *entries: dict[str, Any], **options: Any) -> tuple[SimRequest, ...]:
    (only,) = read(tmp_path, session("one", *entries), **options).sessions
    assert only.start_s is None
    return only.requests


def test_a_request_waits_for_its_predecessor_and_then_for_the_recorded_pause(tmp_path: Path) -> None:
    """Sent at 0 and answered at 5, the next one sent at 12: a pause of 7 s. The third pause is cut."""
    first, second, third = requests_of(
        tmp_path, entry(0, 64, [1], took_s=5), entry(12, 64, [1]), entry(500, 64, [1]), gap_s_max=60.0
    )

    assert (first.after, first.delay_s) == ((), 0.0)
    assert (second.after, second.delay_s) == ((0,), 7.0)
    assert (third.after, third.delay_s) == ((1,), 60.0)


def test_what_has_no_recorded_duration_took_as_long_as_the_median(tmp_path: Path) -> None:
    """The median of 2, 4 and 6 s is 4: the pause from 20 to 30 s is 6 s."""
    entries = [entry(10 * n, 64, [1], took_s=took_s) for n, took_s in enumerate([2, 4, None, 6])]

    assert [one.delay_s for one in requests_of(tmp_path, *entries)] == [0.0, 8.0, 6.0, 6.0]


def test_requests_that_overlapped_in_the_recording_follow_each_other_at_once(tmp_path: Path) -> None:
    assert requests_of(tmp_path, entry(0, 64, [1], took_s=9), entry(4, 64, [1]))[1].delay_s == 0.0


def test_sub_agents_run_side_by_side_and_the_parent_waits_for_all_of_them(tmp_path: Path) -> None:
    """The recorded time of an agent is its end: one ran from 2 to 22 s, the other from 3 to 13 s."""
    made = requests_of(
        tmp_path,
        entry(0, 64, [1], took_s=1),
        agent(13, 10, entry(0, 64, [7], took_s=9)),
        agent(22, 20, entry(0, 64, [8], took_s=2), entry(5, 128, [8, 9], took_s=14)),
        entry(30, 128, [1, 2], took_s=1),
        entry(35, 192, [1, 2, 3]),
    )

    assert [one.after for one in made] == [(), (0,), (0,), (2,), (1, 3), (4,)]
    assert [one.delay_s for one in made] == [0.0, 2.0, 1.0, 3.0, 9.0, 4.0]


def test_nobody_waits_for_an_agent_that_was_launched_aside(tmp_path: Path) -> None:
    """Without a duration its time is its start, and the parent went on meanwhile."""
    made = requests_of(
        tmp_path, entry(0, 64, [1], took_s=1), agent(3, None, entry(0, 64, [7])), entry(4, 128, [1, 2])
    )

    assert [(one.after, one.delay_s) for one in made] == [((), 0.0), ((0,), 2.0), ((0,), 3.0)]


def test_an_agent_without_requests_holds_nobody_up(tmp_path: Path) -> None:
    made = requests_of(tmp_path, entry(0, 64, [1]), agent(9, 5), entry(10, 128, [1, 2]))

    assert made[1].after == (0,)


def test_equal_ids_are_equal_blocks_inside_a_session_only(tmp_path: Path) -> None:
    workload = read(
        tmp_path, session("a", entry(0, 64, [1]), entry(9, 128, [1, 2])), session("b", entry(0, 128, [1, 2]))
    )

    a, b = sorted(workload.sessions, key=lambda one: -len(one.requests))
    assert a.requests[1].blocks[:8] == a.requests[0].blocks
    assert b.requests[0].blocks[:8] != a.requests[0].blocks


def test_sessions_of_one_product_share_tools_and_system_prompt(tmp_path: Path) -> None:
    """Two full blocks of tools: two are shared, the third is the session's. Another model shares nothing."""
    same = [session(name, entry(0, 200, [5, 6, 7]), tools=130) for name in "ab"]
    other = session("c", entry(0, 200, [5, 6, 7]), tools=130, model="other")

    made = [one.requests[0].blocks for one in read(tmp_path, *same, other).sessions]

    heads, wholes = [one[:16] for one in made], set(made)
    assert len(wholes) == 3
    assert sorted(heads.count(head) for head in heads) == [1, 2, 2]
    private = read(tmp_path, *same, share_system=False).sessions
    assert private[0].requests[0].blocks[:8] != private[1].requests[0].blocks[:8]


def test_a_request_with_another_start_does_not_get_the_shared_blocks(tmp_path: Path) -> None:
    """Neither a title that is asked for beside the conversation, nor branches inside the tools."""
    main, title, branch = (
        read(
            tmp_path,
            session("a", entry(0, 192, [1, 2, 3]), entry(5, 64, [9]), entry(9, 128, [1, 8]), tools=192),
        )
        .sessions[0]
        .requests
    )

    assert title.blocks != main.blocks[:8]
    assert branch.blocks[:8] == main.blocks[:8]
    assert branch.blocks[8:] != main.blocks[8:16]


def test_sub_agents_of_one_kind_share_their_own_tools_between_sessions(tmp_path: Path) -> None:
    sessions = [session(n, entry(0, 64, [1]), agent(9, 5, entry(0, 128, [7, 8]))) for n in "ab"]

    one, two = (made.requests[1].blocks for made in read(tmp_path, *sessions).sessions)

    assert one[:8] == two[:8]
    assert one[8:] != two[8:]


def test_a_sub_agent_that_begins_like_its_parent_shares_the_parents_blocks(tmp_path: Path) -> None:
    recorded = session("a", entry(0, 128, [1, 2]), agent(9, 5, entry(0, 192, [1, 2, 3])), tools=64)

    parent, child = read(tmp_path, recorded).sessions[0].requests

    assert child.blocks.startswith(parent.blocks)


def test_an_answer_is_what_the_next_extension_repeats(tmp_path: Path) -> None:
    """150 tokens behind 100 complete two blocks of the prompt that goes on, two requests later."""
    asked, _, extended = requests_of(
        tmp_path,
        entry(0, 100, [1], out=150),
        entry(3, 64, [50]),
        entry(9, 320, [1, 2, 3, 4, 5]),
    )

    assert asked.held == extended.blocks[:24]


def test_an_answer_that_the_client_shortened_never_comes_again(tmp_path: Path) -> None:
    """The prompt goes on by 100 tokens, the answer had 150: its thinking was left out."""
    asked, extended = requests_of(tmp_path, entry(0, 100, [1], out=150), entry(9, 200, [1, 2, 3]))

    assert len(asked.answer) == 16
    assert asked.answer[:8] != extended.blocks[8:16]


def test_longer_requests_than_the_context_are_left_out(tmp_path: Path) -> None:
    made = requests_of(
        tmp_path,
        entry(0, 64, [1], took_s=1),
        entry(5, 640, list(range(10)), took_s=1),
        entry(9, 128, [1, 2]),
        prompt_tokens_max=300,
    )

    assert [(one.tokens, one.after, one.delay_s) for one in made] == [(64, (), 0.0), (128, (0,), 8.0)]


def test_the_seed_orders_the_sessions_and_more_of_them_come_again_as_others(tmp_path: Path) -> None:
    recorded = [session(str(n), entry(0, 200 + n, [1, 2, 3]), tools=64) for n in range(8)]

    def tokens(**options: Any) -> list[int]:
        return [one.requests[0].tokens for one in read(tmp_path, *recorded, **options).sessions]

    assert sorted(tokens()) == list(range(200, 208))
    assert tokens(seed=1) == tokens(seed=1) != tokens(seed=2)
    assert tokens(sessions=3) == tokens()[:3]
    again = read(tmp_path, *recorded, sessions=16).sessions
    assert len({one.requests[0].blocks for one in again}) == 16
    assert len({one.requests[0].blocks[:8] for one in again}) == 1
    order = [one.requests[0].tokens for one in again]
    assert sorted(order[8:]) == sorted(order[:8])
    assert order[8:] != order[:8]


@pytest.mark.parametrize(
    ("recorded", "problem"),
    [
        ({**session("a", entry(0, 64, [1])), "block_size": 128}, "line 1: blocks of 128 tokens"),
        (session("a", entry(0, 64, [1, 2])), "line 1: the request at 0.0 s has 64 tokens and 2 hash ids"),
        (session("a", entry(0, 64, [-1])), "line 1"),
        ({"id": "a"}, "line 1: .*expected a session"),
        (session("a", entry(0, 640, list(range(10)))), "no request of at most 300"),
    ],
)
def test_what_is_wrong_is_said_with_the_line(tmp_path: Path, recorded: dict[str, Any], problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read(tmp_path, recorded, prompt_tokens_max=300)


def test_an_empty_file_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no sessions"):
        read(tmp_path)
