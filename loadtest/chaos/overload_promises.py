"""Promises of an overloaded gateway (`python -m loadtest.chaos overload`).

Normal is the calm load before, of streams with a short prompt. A window of two seconds after the overload is
normal unless more than a third of them began later than `NORMAL_FACTOR` times, and `NORMAL_S` beyond, the
90th percentile before, or did not begin at all. The fleet has recovered at the end of the last other window.
Requests that the crowd itself sent late are not judged.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from loadtest.chaos.crowd import Served
from loadtest.chaos.fault_injector import Blame
from loadtest.chaos.play import Seen
from loadtest.chaos.promises import Promise, always, first, lost_with_its_replica, ttft_s
from loadtest.chaos.verdict import GRACE_S
from loadtest.chaos.visitor import End
from loadtest.report import percentile

RECOVERY_S_MAX = 10.0
NORMAL_FACTOR = 2.0
NORMAL_S = 0.1
BUSY_MIN = 0.9
WINDOW_S = 2.0
STARVED_S = 10.0
LATE_S = 1.0
FAIR_MIN = 0.75
ANSWERS = frozenset((End.ANSWERED, End.REJECTED, End.EXPIRED))


def judge_overload(run: Seen) -> list[Promise]:
    """Judge all promises."""
    return [
        *always(run),
        _answered(run),
        _cut(run),
        _retry_after(run),
        _in_time(run),
        _nobody_starves(run),
        _fair(run),
        _limited(run),
        _busy(run),
        _recovered(run),
    ]


def recovery_s(run: Seen) -> float:
    """Seconds from the end of the overload until times to first token are normal; infinite if never."""
    stopped_s = run.bounds("overload")[1].at_s
    short = [one for one in run.served if one.kind != "long"]
    before = percentile(ttft_s(one for one in short if one.phase == "before"), 0.9)
    if before is None:
        return math.inf
    normal_s = max(before * NORMAL_FACTOR, before + NORMAL_S)
    total: Counter[int] = Counter()
    late: Counter[int] = Counter()
    for one in short:
        seen = one.visit
        in_time = seen.written_s - seen.sent_s < NORMAL_S
        if one.phase == "after" and one.streamed and seen.end is not End.LEFT and in_time:
            window = int((seen.sent_s - stopped_s) // WINDOW_S)
            total[window] += 1
            late[window] += seen.end is not End.ANSWERED or seen.ttft_s is None or seen.ttft_s > normal_s
    abnormal = [window for window in total if late[window] > total[window] / 3]
    if not total or (abnormal and max(abnormal) == max(total)):
        return math.inf
    return (max(abnormal) + 1) * WINDOW_S if abnormal else 0.0


def _asked(run: Seen) -> list[Served]:
    """The requests of the overload whose clients stayed, but for those of tenants with a limit."""
    limited = {tenant.name for tenant in run.play.troupe.tenants if tenant.requests_per_minute}
    return [
        one
        for one in run.served
        if one.phase == "overload" and one.visit.end is not End.LEFT and one.tenant not in limited
    ]


def _answered(run: Seen) -> Promise:
    """Clients that stayed, and were not at a killed replica, have 200, 429 or 408."""
    wrong = [
        one
        for one in run.served
        if one.visit.end not in ANSWERS
        and one.visit.end is not End.LEFT
        and not lost_with_its_replica(run, one, GRACE_S)
    ]
    ends = Counter(one.visit.end.value for one in run.served)
    seen = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    if wrong:
        seen += f"; the first: {wrong[0].visit.problem or wrong[0].visit.end}"
    return Promise("every client gets 200, 429 or 408, and none hangs", not wrong, seen)


def _cut(run: Seen) -> Promise:
    cut = [one for one in run.served if one.visit.end in (End.CUT, End.REFUSED)]
    innocent = sum(not lost_with_its_replica(run, one, GRACE_S) for one in cut)
    killed = any(each.blame is Blame.REPLICA for each in run.struck)
    return Promise(
        "only clients of a killed replica lose their connection",
        not innocent and (bool(cut) or not killed),
        f"{len(cut) - innocent} of the killed replica, {innocent} of others",
    )


def _retry_after(run: Seen) -> Promise:
    """RFC 9110 section 10.2.3 allows a date, too; clients of the peers read whole seconds."""
    rejected = [one.visit.retry_after for one in run.served if one.visit.end is End.REJECTED]
    wrong = [header for header in rejected if header is None or not header.isdecimal() or int(header) < 1]
    times = sorted(int(header) for header in rejected if header is not None and header.isdecimal())
    seen = f"{times[0]} to {times[-1]} s in {len(rejected)} answers" if times else "nobody was rejected"
    return Promise("every 429 says in whole seconds when to come back", not wrong, seen)


def _in_time(run: Seen) -> Promise:
    """Within `LATE_S`, beside the lateness of the crowd itself."""
    late = [
        one.visit.ended_s - one.visit.written_s - one.deadline_s
        for one in run.served
        if one.deadline_s is not None and one.visit.end is End.EXPIRED
    ]
    worst_s = max(late, default=0.0)
    return Promise(
        "who has a deadline hears of it in time",
        worst_s < LATE_S + run.late_s_max,
        f"{len(late)} expired, at most {worst_s:.2f} s behind their deadline; "
        f"the crowd itself was {run.late_s_max:.2f} s late",
        timed=True,
    )


def _nobody_starves(run: Seen) -> Promise:
    """Every class, tenant and kind has answers to its requests of each `STARVED_S` of the overload.

    Tenants with a limit of their own are left out: they may have used it.
    """
    overload = _asked(run)
    began_s = min((one.visit.sent_s for one in overload), default=0.0)
    asked: Counter[str] = Counter()
    for one in overload:
        window = int((one.visit.sent_s - began_s) / STARVED_S)
        for name in ("priority", "tenant", "kind"):
            asked[f"{name} {getattr(one, name)} from {window * STARVED_S:g} s on"] += (
                one.visit.end is End.ANSWERED
            )
    starved = [name for name, answered in asked.items() if not answered]
    return Promise(
        "no class, tenant or kind starves", not starved, first(starved, "all, all the time"), timed=True
    )


def _fair(run: Seen) -> Promise:
    """Each tenant gets nearly its due of the work that was done in the overload.

    Due is each class's work divided by the tenants' weights, where no tenant gets more than it asks for and
    the rest is divided again. Tenants with a limit of their own are left out.
    """
    weights = {tenant.name: tenant.weight for tenant in run.play.troupe.tenants}
    asked: dict[str, Counter[str]] = {}
    got: dict[str, Counter[str]] = {}
    for one in _asked(run):
        asked.setdefault(one.priority, Counter())[one.tenant] += one.work_tokens
        answered_tokens = one.work_tokens if one.visit.end is End.ANSWERED else 0
        got.setdefault(one.priority, Counter())[one.tenant] += answered_tokens
    due: Counter[str] = Counter()
    for name, work in got.items():
        for tenant, tokens in divided(work.total(), asked[name], weights).items():
            due[tenant] += round(tokens)
    parts = {name: sum(work[name] for work in got.values()) / due[name] for name in due if due[name]}
    seen = ", ".join(f"{name} {part:.0%} of its due" for name, part in parts.items())
    fair = all(part >= FAIR_MIN for part in parts.values())
    return Promise("tenants get their shares", fair, seen, timed=True)


def _limited(run: Seen) -> Promise:
    """In any minute no tenant has more requests answered than its limit, plus 2 % and the machine's delays.

    A Valkey that restarts empty forgets the use of that minute: then twice as many.
    """
    over, seen = [], []
    for tenant in run.play.troupe.tenants:
        limit = tenant.requests_per_minute
        if not limit:
            continue
        sent = sorted(
            one.visit.written_s
            for one in run.served
            if one.tenant == tenant.name and one.visit.end is End.ANSWERED
        )
        most = max((bisect_left(sent, at_s + 60.0) - number for number, at_s in enumerate(sent)), default=0)
        emptied = any(each.strike.kind == "Valkey killed" for each in run.struck)
        allowed = limit * (2.0 if emptied else 1.02 + run.late_s_max / 60.0)
        seen.append(f"{tenant.name} at most {most} a minute of {limit}")
        if most > allowed:
            over.append(tenant.name)
    return Promise("no tenant gets more than its limit", not over, ", ".join(seen) or "no limits")


def divided(whole: float, asked: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Divide an amount by weights; none gets more than it asks for."""
    due: dict[str, float] = {}
    open_ = {name for name in weights if asked[name]}
    while open_:
        unit = (whole - sum(due.values())) / sum(weights[name] for name in open_)
        content = {name for name in open_ if asked[name] <= unit * weights[name]}
        if not content:
            return due | {name: unit * weights[name] for name in open_}
        due |= {name: asked[name] for name in content}
        open_ -= content
    return due


def _busy(run: Seen) -> Promise:
    return Promise(
        "engines are never idle while work waits",
        run.busy("overload") >= BUSY_MIN,
        f"they prefilled {run.busy('overload'):.1%} of the overload",
        timed=True,
    )


def _recovered(run: Seen) -> Promise:
    took_s = recovery_s(run)
    seen = "not before the end" if math.isinf(took_s) else f"after {took_s:g} s"
    return Promise("times are normal again soon after", took_s <= RECOVERY_S_MAX, seen, timed=True)
