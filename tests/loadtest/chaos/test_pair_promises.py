"""Each promise is broken by what breaks it, and by nothing else."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from loadtest.chaos import End, PrefillDecodePlan, PrefillDecodeRun, Visit, judge_pairs
from loadtest.chaos.crowd import KINDS, Served
from loadtest.chaos.prefill_decode import Kill

DEAD = "http://dead"
PLAN = PrefillDecodePlan(gbps=80.0, cap_ratio=0.9)
"""9 GB/s are allowed."""


def served(
    kind: str, at_s: float, end: End = End.ANSWERED, *, status: int = 200, replica: str = "http://alive"
) -> Served:
    seen = Visit(end, at_s, at_s, at_s + 1.0, 0.1 if end is End.ANSWERED else None, status, "", None, "")
    return Served(kind, "normal", "", "calm", replica, True, None, 500, seen)


def run(*more: Served, **other: Any) -> PrefillDecodeRun:
    """A request of each kind a second for 100 s; d2 is killed at 50 s, p2 at 20 s; all promises kept."""
    requests = [served(kind, float(at)) for at in range(100) for kind in KINDS] + list(more)
    seen = PrefillDecodeRun(
        PLAN,
        served=requests,
        sent=len(requests),
        kills=[Kill("p2", 20.0), Kill("d2", 50.0)],
        dead=DEAD,
        prefilled=Counter(p1=250, far1=50),
        link=link((10, 8.9e9)),
        link_since_s=5.0,
        link_faults=[(40.0, 42.0)],
    )
    return replace(seen, **other)


def link(*seconds: tuple[int, float]) -> Any:
    """What a link tells that was made at 5 s, and sent so much in a tenth of these seconds."""
    return {
        "arrived": 50,
        "pulled": [],
        "egress": {"buckets": [[10 * at, n_bytes] for at, n_bytes in seconds]},
    }


def broken(seen: PrefillDecodeRun) -> list[str]:
    return [promise.name for promise in judge_pairs(seen) if not promise.kept]


def test_who_was_at_what_was_killed_may_lose_an_answer() -> None:
    assert broken(run()) == []
    assert broken(run(served("short", 49.5, End.CUT), served("long", 49.5, End.FAILED))) == []
    assert broken(run(served("short", 5.0, End.REFUSED, replica=DEAD), served("long", 3.0, End.LEFT))) == []


def test_what_gathers_behind_a_slow_link_may_leave_as_fast_as_it_can() -> None:
    assert broken(run(link=link((36, 9.2e9), (39, 9.2e9)))) == []


def test_what_a_second_cannot_keep_below_the_cap_is_told_apart() -> None:
    """A pull of 9.2 GB from 9.5 to 10.5 s; another one of less is no excuse."""
    pulled = {**link((10, 9.2e9)), "pulled": [(9.5, 10.5, 9.2e9)]}
    assert broken(run(link=pulled)) == []
    assert broken(run(link={**pulled, "pulled": [(9.5, 10.5, 1e9)]})) != []


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        (run(served("short", 60.0, End.CUT)), "only who was"),
        (run(served("short", 48.0, End.CUT)), "only who was"),
        (run(served("short", 20.0, End.CUT)), "only who was"),
        (run(served("short", 49.5, End.FAILED, status=502)), "only who was"),
        (run(served("short", 49.5, End.HUNG)), "only who was"),
        (run(sent=400), "every client"),
        (run(unsent=1), "every client"),
        (run(*(served("odd", 1.0, End.LEFT),), served=[served("long", 1.0, End.LEFT)], sent=1), "every kind"),
        (run(prefilled=Counter(p1=3)), "some prompts"),
        (run(link=link((10, 9.2e9))), "KV keeps below"),
        (run(link=link((34, 9.2e9))), "KV keeps below"),
        (run(link=link((41, 9.2e9))), "KV keeps below"),
        (run(left=["r1: waiting 1"]), "nothing is left"),
        (run(errors=["r1: {}"]), "no replica logs"),
    ],
)
def test_what_breaks_a_promise_is_found(seen: PrefillDecodeRun, name: str) -> None:
    (found,) = broken(seen)
    assert found.startswith(name)
