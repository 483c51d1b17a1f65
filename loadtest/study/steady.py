"""A closed loop cut where its first user would run out of sessions.

Sessions are heavy-tailed: the last of them goes on for hours with a few users, and a fleet that is idle by
then says nothing about its load. So every user stops at the same time, counted in pauses alone: users reach
it one after the other, within the spread of their answers.

    user 1   [ session a ][ session d  ]|
    user 2   [   session b    ][ session| e   ]         what is behind the line is left out
    user 3   [ session c ][   session f |              ]
"""

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush

from loadtest.simulator.workload import Session, SimRequest, Workload


def steady(workload: Workload) -> Workload:
    """Leave out the requests that come after the first user of a closed loop has run out of sessions.

    It has at least as many sessions as users.
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
    """Time of each request of a session that begins at ``start_s``.

    ``answer_s`` is the duration of an answer.
    """
    times_s: list[float] = []
    ends_s: list[float] = []
    for request in session.requests:
        from_s = max((ends_s[other] for other in request.after), default=start_s)
        times_s.append(from_s + request.delay_s)
        ends_s.append(times_s[-1] + answer_s(request))
    return times_s


def _until(session: Session, times_s: list[float], end_s: float) -> Session:
    """The session without requests after a time; no request waits for a left-out one."""
    number: dict[int, int] = {}
    requests: list[SimRequest] = []
    for index, (request, at_s) in enumerate(zip(session.requests, times_s, strict=True)):
        if at_s <= end_s:
            number[index] = len(requests)
            requests.append(replace(request, after=tuple(number[other] for other in request.after)))
    return Session(session.start_s, tuple(requests))
