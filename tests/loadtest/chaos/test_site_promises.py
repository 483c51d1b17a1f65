"""Each promise is broken by the fault that breaks it, and by no other."""

from dataclasses import replace
from typing import Any

import pytest

from loadtest.chaos import End, Visit
from loadtest.chaos.crowd import KINDS, Served
from loadtest.chaos.fault_injector import Blame
from loadtest.chaos.play import Seen
from loadtest.chaos.record import Struck
from loadtest.chaos.schedule import Strike
from loadtest.chaos.site_promises import judge_sites
from loadtest.chaos.sites import SitesPlan

DEAD = "r2"
PLAY = SitesPlan(gbps=80.0, cap_ratio=0.9).play
"""9 GB/s are allowed."""


def served(
    kind: str, at_s: float, end: End = End.ANSWERED, *, status: int = 200, replica: str = "r1"
) -> Served:
    seen = Visit(end, at_s, at_s, at_s + 1.0, 0.1 if end is End.ANSWERED else None, status, "", None, "")
    return Served(kind, "normal", "", "calm", replica, True, None, 500, seen)


def run(*more: Served, **other: Any) -> Seen:
    """A request of each kind a second for 100 s; d2 is killed at 50 s, p2 at 20 s; all promises kept."""
    requests = [served(kind, float(at)) for at in range(100) for kind in KINDS] + list(more)
    seen = Seen(
        PLAY,
        served=requests,
        sent=len(requests),
        struck=[
            struck("p2", 20.0, 25.0, Blame.WORKER),
            struck("d2", 50.0, 55.0, Blame.WORKER),
            struck(DEAD, 2.0, 6.0, Blame.REPLICA),
            struck("link", 40.0, 42.0, Blame.NOBODY),
        ],
        stats=stats(p1=250, far1=50),
        link=link((10, 8.9e9)),
        link_since_s=5.0,
    )
    return replace(seen, **other)


def struck(target: str, began_s: float, ended_s: float, blame: Blame) -> Struck:
    group = "link" if target == "link" else ""
    return Struck(Strike(began_s, group, target, ended_s - began_s), group, blame, began_s, ended_s)


def stats(**requests: int) -> dict[tuple[str, int], dict[str, int]]:
    return {
        (name, 1): {"requests": count, "prompt_tokens": 0, "cached_tokens": 0}
        for name, count in requests.items()
    }


def link(*seconds: tuple[int, float]) -> Any:
    """Report of a link made at 5 s that sent these bytes in a tenth of these seconds."""
    return {
        "arrived": 50,
        "pulled": [],
        "egress": {"buckets": [[10 * at, n_bytes] for at, n_bytes in seconds]},
    }


def broken(seen: Seen) -> list[str]:
    return [promise.name for promise in judge_sites(seen) if not promise.kept]


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
        (run(stats=stats(p1=3)), "some prompts"),
        (run(link=link((10, 9.2e9))), "KV keeps below"),
        (run(link=link((34, 9.2e9))), "KV keeps below"),
        (run(link=link((41, 9.2e9))), "KV keeps below"),
        (run(left=["r1: waiting 1"]), "nothing is left"),
        (run(errors=["r1: {}"]), "no replica logs"),
    ],
)
def test_what_breaks_a_promise_is_found(seen: Seen, name: str) -> None:
    (found,) = broken(seen)
    assert found.startswith(name)
