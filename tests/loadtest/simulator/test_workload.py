"""The workload of a simulation: order, cuts, and checks of hand-made ones."""

from dataclasses import replace

import pytest

from loadtest.simulator.identity import FreshBlocks
from loadtest.simulator.workload import Session, SimRequest, Workload


def request(tokens: int, *after: int, delay_s: float = 0.0) -> SimRequest:
    blocks = FreshBlocks(tokens).take(tokens // 64)
    return SimRequest(blocks=blocks, tokens=tokens, output_tokens=1, delay_s=delay_s, after=after)


def test_an_open_loop_is_ordered_by_starts_and_pauses() -> None:
    """If answers come at once, 11 is sent at 1 + 4 s, between 21 at 2 s and 22 at 2 + 5 s."""
    first = Session(1.0, (request(10), request(11, 0, delay_s=4.0)))
    second = Session(2.0, (request(21), request(22, 0, delay_s=5.0)))

    order = Workload("w", (first, second)).in_order()

    assert [one.tokens for one in order] == [10, 21, 11, 22]


def test_a_request_is_ordered_behind_the_last_of_those_that_it_waits_for() -> None:
    forked = Session(0.0, (request(1), request(2, 0, delay_s=9.0), request(3, 0), request(4, 1, 2)))
    other = Session(5.0, (request(5),))

    order = Workload("w", (forked, other)).in_order()

    assert [one.tokens for one in order] == [1, 3, 5, 2, 4]


def test_what_a_request_takes_delays_those_that_wait_for_it() -> None:
    first = Session(1.0, (request(10), request(11, 0, delay_s=4.0)))

    arrivals = Workload("w", (first,)).arrivals(lambda one: float(one.tokens))

    assert [at_s for at_s, _ in arrivals] == [1.0, 15.0]


def test_users_of_a_closed_loop_take_the_next_session_when_theirs_has_ended() -> None:
    """The second of two users is free first, at 1 s, and takes the third session."""
    sessions = [
        Session(None, (request(10), request(11, 0, delay_s=3.0))),
        Session(None, (request(20), request(21, 0, delay_s=1.0))),
        Session(None, (request(30), request(31, 0, delay_s=1.0))),
    ]

    order = Workload("w", tuple(sessions), users=2).in_order()

    assert [one.tokens for one in order] == [10, 20, 21, 30, 31, 11]


def test_a_cut_keeps_the_first_requests_session_by_session() -> None:
    sessions = tuple(Session(float(n), (request(10), request(11, 0))) for n in range(3))

    cut = Workload("w", sessions).cut(3)

    assert [len(session.requests) for session in cut.sessions] == [2, 1]
    cut.check()


def test_totals_are_over_all_sessions() -> None:
    workload = Workload("w", (Session(0.0, (request(10), request(30, 0))), Session(1.0, (request(5),))))

    assert (workload.request_count, workload.prompt_tokens, workload.output_tokens) == (3, 45, 3)


def test_what_is_held_is_the_prompt_and_then_the_answer() -> None:
    assert replace(request(64), answer=b"x" * 8).held == request(64).blocks + b"x" * 8


@pytest.mark.parametrize(
    "broken",
    [
        replace(request(128), blocks=b""),
        replace(request(128), answer=b"x" * 8),
        replace(request(128), output_tokens=65),
        replace(request(128), delay_s=-1.0),
        replace(request(128), after=(0,)),
        replace(request(1), tokens=0),
    ],
)
def test_a_request_that_contradicts_itself_is_named(broken: SimRequest) -> None:
    with pytest.raises(ValueError, match="session 0, request 0"):
        Workload("w", (Session(0.0, (broken,)),)).check()


@pytest.mark.parametrize(("start_s", "users"), [(None, 0), (0.0, 1)])
def test_a_session_has_a_start_in_an_open_loop_only(start_s: float | None, users: int) -> None:
    with pytest.raises(ValueError, match="session 0 starts"):
        Workload("w", (Session(start_s, (request(1),)),), users=users).check()
