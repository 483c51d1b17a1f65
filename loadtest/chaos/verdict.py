"""Promises of a gateway under any fault, judged act by act (`loadtest.chaos.record`).

    each request is answered    once, and every byte of it is right; `Blame` may excuse the loss of its rest
    no request is refused       while workers are well; and none hangs, ever
    no work is done twice       one worker, or one pair, unless an attempt failed
    affinity is back in 10 s    sessions reuse nine tenths of the cached tokens that they reused before
    nothing is left             without clients: no request, no reservation, no byte on a link
    replicas agree              on what workers hold and on settings, and none is degraded
    all serve again             killed processes come up; every change of settings succeeds
    memory, files               do not grow; and nothing is logged as an error

Clients' results, affinity, memory and files are judged here, the rest in `loadtest.chaos.campaign`.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from loadtest.chaos.agents import Asked
from loadtest.chaos.fault_injector import Blame
from loadtest.chaos.record import ActSeen, Broken, Record, Struck
from loadtest.chaos.schedule import RECOVERY_S
from loadtest.chaos.visitor import End

BACK_RATIO = 0.9
WINDOW_S = 3.0
STEP_S = 0.5
WINDOW_REQUESTS_MIN = 8
"""Fewer say nothing about a ratio."""

GRACE_S = 1.0
"""Time after a fault in which its effect may still show: a lost peer is noticed at the next byte."""

ROOM_GRACE_S = 15.0
"""Time after a failure of workers in which requests may still be refused: they have queued meanwhile."""

GROWTH_MAX = 1.5
GROWTH_BYTES = 64 << 20
FILES_MORE_MAX = 128
PROBLEMS_MAX = 5

_CAPACITY_GROUPS = frozenset({"worker", "pair", "network", "admin", "replica"})
"""Faults behind which there may be too few workers for a while."""


def judge_act(seen: ActSeen, asked: Sequence[Asked], came: Mapping[str, Mapping[str, int]]) -> list[Broken]:
    """Judge the answers of one act, and the recovery of affinity, which it notes in ``seen``.

    All requests in ``asked`` have ended; ``came`` counts arrivals of each at engines of each role.
    """
    broken = [*_wrong(asked), *_ended(seen, asked), *_once(seen, asked, came)]
    _recover(seen, asked)
    if seen.recovery_s is None:
        what = f"at least {seen.worst_ratio:.2f} of what can be found, {seen.hit_ratio:.2f} before"
        broken.append(Broken("affinity is back in 10 s", what, seen.mended_s))
    return broken


def hit_ratio(asked: Iterable[Asked]) -> tuple[float, int]:
    """Share of what sessions could find in caches that they found, in tokens, and in how many requests."""
    turns = [one for one in asked if one.reusable_tokens and one.cached_tokens is not None]
    if not turns:
        return 1.0, 0
    found = sum(min(one.cached_tokens or 0, one.reusable_tokens) for one in turns)
    return found / sum(one.reusable_tokens for one in turns), len(turns)


def judge_growth(record: Record) -> list[Broken]:
    """True if any replica grew, over all its lives."""
    broken = []
    for name in sorted({sample.replica for sample in record.samples}):
        samples = [sample for sample in record.samples if sample.replica == name]
        part = max(1, len(samples) // 4)
        first, last = samples[part : 2 * part] or samples, samples[-part:]
        before, after = (statistics.median(each.rss_bytes for each in some) for some in (first, last))
        if after > GROWTH_MAX * before + GROWTH_BYTES:
            seen = f"{name}: {before / 1e6:.0f} MB in the second quarter, {after / 1e6:.0f} MB in the last"
            broken.append(Broken("memory is bounded", seen))
        before, after = (min(each.open_files for each in some) for some in (first, last))
        if after > before + FILES_MORE_MAX:
            broken.append(Broken("open files are bounded", f"{name}: {before:.0f}, then {after:.0f}"))
    return broken


def _wrong(asked: Iterable[Asked]) -> list[Broken]:
    wrong = [one for one in asked if one.wrong]
    return [
        Broken("every byte of an answer is right", _told(one, one.wrong), one.visit.sent_s)
        for one in wrong[:PROBLEMS_MAX]
    ]


def _ended(seen: ActSeen, asked: Iterable[Asked]) -> list[Broken]:
    broken = []
    for one in asked:
        end = one.visit.end
        if end in (End.ANSWERED, End.LEFT) or _excused(one, seen.struck):
            continue
        promise = "each request is answered"
        if end in (End.REJECTED, End.EXPIRED):
            promise = "no request is refused while workers are well"
        broken.append(
            Broken(
                promise, _told(one, f"{end.value}: {one.visit.code} {one.visit.problem}"), one.visit.sent_s
            )
        )
    return broken[:PROBLEMS_MAX]


def _excused(one: Asked, struck: Iterable[Struck]) -> bool:
    seen = one.visit
    for each in struck:
        if seen.end in (End.REJECTED, End.EXPIRED):
            if each.group in _CAPACITY_GROUPS and each.overlaps(seen.sent_s, seen.ended_s, ROOM_GRACE_S):
                return True
            continue
        if not each.overlaps(seen.sent_s, seen.ended_s, GRACE_S):
            continue
        if each.blame is Blame.REPLICA:
            lost = one.replica == each.strike.target and seen.end in (End.CUT, End.REFUSED)
        else:
            begun = seen.end in (End.FAILED, End.CUT) and seen.status == 200
            theirs = seen.worker == each.worker_id or one.kind == "pair"
            lost = each.blame is Blame.WORKER and begun and theirs
        if lost:
            return True
    return False


def _once(seen: ActSeen, asked: Iterable[Asked], came: Mapping[str, Mapping[str, int]]) -> list[Broken]:
    broken = []
    for one in asked:
        roles = came.get(one.request_id, Counter())
        if one.visit.end is End.ANSWERED and not roles:
            broken.append(Broken("each request is answered", _told(one, "by no engine"), one.visit.sent_s))
        failing = any(
            each.group in _CAPACITY_GROUPS
            and each.overlaps(one.visit.sent_s, one.visit.ended_s, ROOM_GRACE_S)
            for each in seen.struck
        )
        if not failing and any(count > 1 for count in roles.values()):
            came_to = ", ".join(f"{role} {count} times" for role, count in sorted(roles.items()))
            broken.append(Broken("no work is done twice", _told(one, came_to), one.visit.sent_s))
    return broken[:PROBLEMS_MAX]


def _recover(seen: ActSeen, asked: Sequence[Asked]) -> None:
    """Note when sessions found again what they did; how late our own clock was is allowed, too."""
    began_s = min((each.began_s for each in seen.struck), default=seen.mended_s)
    last_s = seen.mended_s + RECOVERY_S + min(seen.late_s, RECOVERY_S)
    steps = math.ceil((last_s - began_s) / STEP_S)
    seen.recovery_s, seen.worst_ratio = 0.0, seen.hit_ratio
    for step in range(steps + 1):
        from_s = last_s - (steps - step) * STEP_S
        ratio, turns = hit_ratio(one for one in asked if from_s <= one.visit.sent_s < from_s + WINDOW_S)
        if turns < WINDOW_REQUESTS_MIN:
            continue
        seen.worst_ratio = min(ratio, seen.worst_ratio)
        if ratio < BACK_RATIO * seen.hit_ratio and from_s >= seen.mended_s:
            seen.recovery_s = None if step == steps else from_s + STEP_S - seen.mended_s


def _told(one: Asked, what: str) -> str:
    kind = f"{one.kind}{', streamed' if one.streamed else ''}"
    return f"{one.request_id} ({kind}) at {one.replica}, worker {one.visit.worker or 'unknown'}: {what}"
