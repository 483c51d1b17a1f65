"""A closed loop as an open one: every request of a session gets a time of its own.

So the load does not fall when answers come late, which is what overload is about.
"""

from dataclasses import replace

from loadtest.simulator.workload import Session, SimRequest, Workload
from loadtest.study.steady import arrivals_s

ANSWER_S, OUTPUT_TOKEN_S = 2.0, 0.02
"""Assumed time of an answer: two seconds, and 20 ms per token.

[guess] It only separates a session's turns.
"""

RAMP_S = 1800.0
"""About as long as a session."""


def opened(workload: Workload, *, full: bool = False) -> Workload:
    """Return the requests at the times at which they would come if all answers took the assumed time.

    Users begin spread over `RAMP_S`, so uncached first prompts do not all come at once. ``full`` leaves out
    what comes when the first user has no more sessions.
    """
    free_s = [RAMP_S * user / workload.users for user in range(workload.users)]
    sessions: list[Session] = []
    for session in workload.sessions:
        user = min(range(workload.users), key=free_s.__getitem__)
        times_s = arrivals_s(session, free_s[user], _answer_s)
        free_s[user] = max(times_s)
        sessions += [
            Session(at_s, (replace(request, delay_s=0.0, after=()),))
            for at_s, request in zip(times_s, session.requests, strict=True)
        ]
    if full:
        sessions = [session for session in sessions if (session.start_s or 0.0) <= min(free_s)]
    sessions.sort(key=lambda session: session.start_s or 0.0)
    notes = f"{workload.notes}; each request at a time of its own"
    return replace(workload, sessions=tuple(sessions), users=0, notes=notes, named_sessions=False)


def _answer_s(request: SimRequest) -> float:
    return ANSWER_S + OUTPUT_TOKEN_S * request.output_tokens
