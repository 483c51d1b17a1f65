"""Promises of a gateway whose workers prefill and decode apart (`python -m loadtest.chaos sites`).

A client loses an answer that has begun only with the worker that decodes it, or with its replica; every other
failure costs time. So a cut client must have had a request open when one of these was killed.
"""

from collections import Counter

from loadtest.chaos.crowd import KINDS, Served
from loadtest.chaos.play import Seen
from loadtest.chaos.promises import Promise, always, lost_with_its_replica
from loadtest.chaos.visitor import End
from loadtest.engine.link import seconds_of

FAR = "dc2"
"""The other site."""

ANSWERS = frozenset((End.ANSWERED, End.REJECTED, End.EXPIRED, End.LEFT))
CAP_SLACK = 1.01
"""Allowance of the link's second: bytes are counted in tenths."""

DRAINED_S = 3.0
"""Time in which the backlog of a fault of the link still leaves."""

NOTICED_S = 2.0
"""After a kill its streams are over: the gateway hears of it from the system at once."""


def judge_sites(run: Seen) -> list[Promise]:
    """Judge all promises."""
    return [
        *always(run),
        _answered(run),
        _all_kinds(run),
        _remote(run),
        _egress(run),
    ]


def prefilled(run: Seen) -> tuple[Counter[str], int, int]:
    """Requests by prefill worker, all its lives together; their prompt tokens, and those that were cached."""
    roles = {part.name: part.role for part in run.play.troupe.parts}
    stats = [(name, each) for (name, _), each in run.stats.items() if roles[name] == "prefill"]
    requests: Counter[str] = Counter()
    for name, each in stats:
        requests[name] += each["requests"]
    tokens = [(each["prompt_tokens"], each["cached_tokens"]) for _, each in stats]
    return requests, sum(prompt for prompt, _ in tokens), sum(cached for _, cached in tokens)


def cut_by_a_kill(run: Seen, one: Served) -> bool:
    """True if a request may have lost its answer with the process that gave it."""
    decode = {part.name for part in run.play.troupe.parts if part.role == "decode"}
    broken = one.visit.end is End.CUT or (one.visit.end is End.FAILED and one.visit.status == 200)
    lost_with_its_worker = broken and any(
        each.strike.target in decode
        and one.visit.written_s <= each.began_s + NOTICED_S
        and one.visit.ended_s >= each.began_s
        for each in run.struck
    )
    return lost_with_its_worker or lost_with_its_replica(run, one, NOTICED_S)


def _answered(run: Seen) -> Promise:
    wrong = [one for one in run.served if one.visit.end not in ANSWERS and not cut_by_a_kill(run, one)]
    ends = Counter(one.visit.end.value for one in run.served)
    seen = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    if wrong:
        seen += f"; the first of {len(wrong)}: {wrong[0].visit.problem or wrong[0].visit.end}"
    return Promise("only who was at a killed decode worker or replica loses an answer", not wrong, seen)


def _all_kinds(run: Seen) -> Promise:
    answered = Counter(one.kind for one in run.served if one.visit.end is End.ANSWERED)
    asked = Counter(one.kind for one in run.served)
    seen = ", ".join(f"{answered[kind]} of {asked[kind]} {kind}" for kind in KINDS)
    return Promise("every kind is answered", all(answered[kind] for kind in KINDS if asked[kind]), seen)


def _remote(run: Seen) -> Promise:
    requests = prefilled(run)[0]
    far = sum(count for name, count in requests.items() if name.startswith("far"))
    seen = f"{far} of {requests.total()} prefills in {FAR}, {run.link['arrived']} transfers over the link"
    return Promise("some prompts are prefilled in the other site", far > 0, seen)


def _egress(run: Seen) -> Promise:
    """Check every window of a second, with any beginning, while the link has no fault.

    After a slow time the link sends its backlog at full rate. An engine that pulls more at once (NIXL) than a
    second may carry exceeds any gateway's bound: such seconds are reported apart.
    """
    (link,) = run.play.troupe.settings["fleet"]["links"].values()
    cap = link["cap_ratio"] * link["gbps"] * 1e9 / 8
    alone = [(began_s, ended_s) for began_s, ended_s, n_bytes in run.link["pulled"] if n_bytes > cap]
    every = seconds_of(run.link["egress"]["buckets"])
    seconds = [
        (end_s, n_bytes)
        for end_s, n_bytes in every
        if not any(began_s < end_s and end_s - 1.0 < ended_s for began_s, ended_s in alone)
    ]
    over = [
        (end_s, n_bytes)
        for end_s, n_bytes in seconds
        if n_bytes > CAP_SLACK * cap and not _hampered(run, run.link_since_s + end_s)
    ]
    most = max((n_bytes for _, n_bytes in over or seconds), default=0.0)
    seen = (
        f"at most {most * 8e-9:.1f} Gbit/s in a second, of {cap * 8e-9:.1f} allowed on "
        f"{link['gbps']:g}; {len(over)} of {len(seconds)} seconds above it; "
        f"{len(every) - len(seconds)} more saw one of {len(alone)} pulls that are larger than it"
    )
    return Promise("KV keeps below its share of the link in every second", not over, seen, timed=True)


def _hampered(run: Seen, end_s: float) -> bool:
    """True if a second that ended then saw a fault of the link, or its backlog."""
    return any(
        each.group == "link" and each.began_s < end_s and end_s - 1.0 < each.ended_s + DRAINED_S
        for each in run.struck
    )
