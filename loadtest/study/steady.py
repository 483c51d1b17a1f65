"""A closed loop cut where its first user would run out of sessions.

Sessions are heavy-tailed: the last of them goes on for hours with a few users, and figures of a fleet that is
idle by then say nothing about its load. So every user stops at the same time, counted in pauses alone: with
answers that take time users reach it one after the other, within the spread of their answers.

    user 1   [ session a ][ session d  ]|
    user 2   [   session b    ][ session| e   ]         what is behind the line is left out
    user 3   [ session c ][   session f |              ]
"""

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush

from loadtest.simulator.workload import Session, SimRequest, Workload


def steady(workload: Workload) -> Workload:
    """Leave out the requests that come after the first user has run out of sessions.

    Args:
        workload: A closed loop with at least as many sessions as users.
    """
    assert 0 < workload.users <= len(workload.sessions)
    taken: list[tuple[Session, list[float]]] = []
    free_s = [0.0] * workload.users
    for session in workload.sessions:
        times_s = arrivals_s(session, heappop(free_s))
        taken.append((session, times_s))
        heappush(free_s, max(times_s))
    cut = (_until(session, times_s, min(free_s)) for session, times_s in taken)
    notes = f"{workload.notes}; cut when the first user has no more sessions".lstrip("; ")
    return replace(workload, sessions=tuple(session for session in cut if session.requests), notes=notes)


def _at_once(_request: SimRequest) -> float:
    return 0.0


def arrivals_s(
    session: Session, start_s: float, answer_s: Callable[[SimRequest], float] = _at_once
) -> list[float]:
    """When each request of a session comes.

    Args:
        session: Whose.
        start_s: When it begins.
        answer_s: Seconds from a request to the end of its answer.
    """
    times_s: list[float] = []
    ends_s: list[float] = []
    for request in session.requests:
        from_s = max((ends_s[other] for other in request.after), default=start_s)
        times_s.append(from_s + request.delay_s)
        ends_s.append(times_s[-1] + answer_s(request))
    return times_s


def _until(session: Session, times_s: list[float], end_s: float) -> Session:
    """The session without what comes after a time; nobody waits for what is left out."""
    number: dict[int, int] = {}
    kept: list[SimRequest] = []
    for index, (request, at_s) in enumerate(zip(session.requests, times_s, strict=True)):
        if at_s <= end_s:
            number[index] = len(kept)
            kept.append(replace(request, after=tuple(number[other] for other in request.after)))
    return Session(session.start_s, tuple(kept))
