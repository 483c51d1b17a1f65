"""The cut of a closed loop."""

from loadtest.simulator.workload import Session, SimRequest, Workload
from loadtest.study.steady import steady


def request(delay_s: float, *after: int) -> SimRequest:
    return SimRequest(b"", 10, 1, delay_s=delay_s, after=after)


def delays(workload: Workload) -> list[list[float]]:
    return [[one.delay_s for one in session.requests] for session in workload.sessions]


def test_what_comes_after_the_first_user_has_run_out_is_left_out() -> None:
    """User 1 ends at 3 s and finds nothing; user 2 has requests at 1, 3 and 9 s."""
    short = Session(None, (request(1.0), request(2.0, 0)))
    long = Session(None, (request(1.0), request(2.0, 0), request(6.0, 1)))

    cut = steady(Workload("w", (short, long), users=2))

    assert delays(cut) == [[1.0, 2.0], [1.0, 2.0]]
    cut.check()


def test_users_take_sessions_in_turn_and_sessions_never_begun_are_left_out() -> None:
    """Free at 1, 5 and then 2 s: the third session begins at 1 s, the fourth at 2 s and ends first of all."""
    ones = Session(None, (request(1.0),))
    five = Session(None, (request(5.0),))
    tail = Session(None, (request(1.5), request(9.0, 0)))

    cut = steady(Workload("w", (ones, five, ones, tail), users=2))

    assert delays(cut) == [[1.0], [5.0], [1.0], [1.5]]


def test_requests_that_are_waited_for_keep_their_place() -> None:
    """The second of three parallel requests comes too late; the request behind the others renumbers them."""
    first = request(0.0)
    fans = (request(1.0, 0), request(9.0, 0), request(2.0, 0))
    joined = Session(None, (first, *fans, request(1.0, 1, 3)))
    other = Session(None, (request(4.0),))

    cut = steady(Workload("w", (joined, other), users=2))

    assert [one.after for one in cut.sessions[0].requests] == [(), (0,), (0,), (1, 2)]
    cut.check()


def test_a_request_that_waits_for_one_left_out_is_left_out_as_well() -> None:
    session = Session(None, (request(0.0), request(9.0, 0), request(0.0, 1)))
    other = Session(None, (request(4.0),))

    assert delays(steady(Workload("w", (session, other), users=2)))[0] == [0.0]
