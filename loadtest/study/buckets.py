"""Length buckets: the same fleet, parted by the length of requests.

In one pool a short prompt shares steps with long ones: data-parallel ranks wait for the longest of them, and
a chunk that mixes both costs what the long context costs (MiMo-V2.5, arXiv:2607.13095, 5.2). With buckets
each range of lengths has workers of its own, as many as its share of the work asks for, and a conversation
that grows out of its range begins anew in the next one, without its cache. Gain and loss both show here.

Sessions cross buckets, so they are taken apart: `opened` gives every request a time of its own.
"""

from dataclasses import replace

from loadtest.simulator.least_work import least_work_s, shared_out
from loadtest.simulator.records import Records
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import Session, SimRequest, Workload
from loadtest.study.steady import arrivals_s
from policies import LengthBuckets

BUCKETS = LengthBuckets()
"""0-64K, 64K-256K and 256K-1M tokens, as published."""

ANSWER_S, OUTPUT_TOKEN_S = 2.0, 0.02
"""What an answer is taken to take when sessions are taken apart: two seconds, and 20 ms per token. [guess] It
only says how far apart the turns of a session are."""

RAMP_S = 1800.0
"""About as long as a session."""


def opened(workload: Workload, *, full: bool = False) -> Workload:
    """A closed loop as an open one: requests come when they would if all answers took what is usual.

    Users begin spread over `RAMP_S`: their first prompts, which nobody has cached, do not all come at once.

    Args:
        workload: The closed loop.
        full: Whether to leave out what comes when the first user has no more sessions.
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
    return replace(workload, sessions=tuple(sessions), users=0, notes=notes)


def _answer_s(request: SimRequest) -> float:
    return ANSWER_S + OUTPUT_TOKEN_S * request.output_tokens


def simulated_in_buckets(workload: Workload, config: SimulationConfig) -> list[Records]:
    """Simulate every bucket on its share of the workers.

    Args:
        workload: An open loop.
        config: Of the whole fleet.

    Returns:
        Records of the buckets that have requests, the shortest first.
    """
    parts = [part for part in _parted(workload) if part.sessions]
    works_s = [
        least_work_s(part.in_order(), config.engine.prefill, block_tokens=part.block_tokens) for part in parts
    ]
    shares = shared_out(config.workers, works_s)
    return [
        simulate(part, replace(config, workers=workers)).records
        for part, workers in zip(parts, shares, strict=True)
    ]


def _parted(workload: Workload) -> list[Workload]:
    kept: list[list[Session]] = [[] for _ in BUCKETS.names]
    for session in workload.sessions:
        (request,) = session.requests
        index = BUCKETS.index(request.tokens + request.output_tokens)
        kept[-1 if index is None else index].append(session)
    return [
        replace(workload, name=f"{workload.name} {name}", sessions=tuple(sessions))
        for name, sessions in zip(BUCKETS.names, kept, strict=True)
    ]
