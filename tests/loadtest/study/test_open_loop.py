"""Sessions taken apart."""

from loadtest.simulator.workload import Session, SimRequest, Workload
from loadtest.study.open_loop import RAMP_S, opened


def request(tokens: int, delay_s: float = 0.0, *after: int) -> SimRequest:
    return SimRequest(b"", tokens, 50, delay_s=delay_s, after=after)


def test_requests_of_a_session_come_when_the_answers_before_them_would_be_there() -> None:
    """An answer of 50 tokens takes 2 + 50·0.02 = 3 s; the second session begins when its user is free."""
    first = Session(None, (request(5, 1.0), request(6, 5.0, 0)))
    workload = Workload("w", (first, Session(None, (request(7),))), users=1)

    found = opened(workload)

    found.check()
    assert [(session.start_s, session.requests[0].tokens) for session in found.sessions] == [
        (1.0, 5),
        (9.0, 6),
        (9.0, 7),
    ]


def test_a_full_load_ends_when_the_first_user_has_nothing_more_to_do() -> None:
    """The other user begins half a ramp later and takes two of the three sessions; the last is left out."""
    sessions = tuple(Session(None, (request(5, delay_s),)) for delay_s in (1000.0, 5.0, 2000.0))
    workload = Workload("w", sessions, users=2)

    whole, full = opened(workload), opened(workload, full=True)

    late_s = RAMP_S / 2 + 5.0
    assert [session.start_s for session in whole.sessions][:2] == [late_s, 1000.0]
    assert len(whole.sessions) == 3
    assert [session.start_s for session in full.sessions] == [late_s, 1000.0]
