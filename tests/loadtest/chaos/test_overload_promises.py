"""Each promise is broken by the fault that breaks it, and by no other."""

import math
from dataclasses import replace

import pytest

from loadtest.chaos import End, Visit
from loadtest.chaos.crowd import Served
from loadtest.chaos.fault_injector import ALL, Blame
from loadtest.chaos.overload import TENANTS
from loadtest.chaos.overload_promises import divided, judge_overload, recovery_s
from loadtest.chaos.play import Play, Reading, Scene, Seen
from loadtest.chaos.record import Struck
from loadtest.chaos.schedule import Strike
from loadtest.chaos.testbed import Part, Troupe
from loadtest.engine import EngineSettings

DEAD = "r4"
PLAY = Play(
    Troupe([Part(f"e{number}", "plain", EngineSettings()) for number in range(4)], {}, TENANTS),
    [Scene("before", 0.0, 10.0), Scene("overload", 10.0, 10.0), Scene("after", 20.0, 10.0)],
    40.0,
)


def served(
    phase: str,
    at_s: float,
    *,
    end: End = End.ANSWERED,
    ttft_s: float = 0.1,
    took_s: float = 0.2,
    retry_after: str | None = None,
    deadline_s: float | None = None,
    replica: str = "r1",
    priority: str = "normal",
) -> Served:
    seen = Visit(
        end, at_s, at_s, at_s + took_s, ttft_s if end is End.ANSWERED else None, 200, "", retry_after, ""
    )
    return Served("short", priority, "silver", phase, replica, True, deadline_s, 500, seen)


def run(*more: Served, dead: str = "", busy: float = 0.99) -> Seen:
    """Ten calm seconds, ten of overload, twenty calm ones; ten requests a second; all promises kept."""
    phases = [("before", 0, 10), ("overload", 10, 20), ("after", 20, 40)]
    requests = [served(phase, at / 10) for phase, start, end in phases for at in range(10 * start, 10 * end)]
    requests += more
    readings = [Reading(at_s, busy_s) for at_s, busy_s in ((0, 0), (10, 0), (20, 40 * busy), (40, 40 * busy))]
    strikes = (
        (Strike(9.0, "replica killed", dead, 3.0), Blame.REPLICA),
        (Strike(9.0, "Valkey killed", ALL, 3.0), Blame.NOBODY),
    )
    struck = [Struck(strike, "", blame, 9.0, 12.0) for strike, blame in strikes if dead]
    return Seen(PLAY, served=requests, sent=len(requests), struck=struck, readings=readings)


def broken(seen: Seen) -> list[str]:
    return [promise.name for promise in judge_overload(seen) if not promise.kept]


def test_a_run_without_a_blemish_keeps_all_promises() -> None:
    rejected = served("overload", 11.0, end=End.REJECTED, retry_after="3")
    expired = served("overload", 11.0, end=End.EXPIRED, deadline_s=4.0, took_s=4.01)
    left = served("overload", 11.0, end=End.LEFT)
    cut = served("overload", 11.0, end=End.CUT, replica=DEAD)
    assert broken(run(rejected, expired, left)) == []
    assert broken(run(cut, dead=DEAD)) == []


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (run(served("overload", 11.0, end=End.HUNG)), ["every client gets"]),
        (run(served("overload", 11.0, end=End.FAILED)), ["every client gets"]),
        (run(served("overload", 11.0, end=End.CUT)), ["every client gets", "only clients of"]),
        (run(served("overload", 11.0, end=End.CUT), dead=DEAD), ["every client gets", "only clients of"]),
        (run(dead=DEAD), ["only clients of"]),
        (run(served("overload", 11.0, end=End.REJECTED)), ["every 429"]),
        (run(served("overload", 11.0, end=End.REJECTED, retry_after="1.5")), ["every 429"]),
        (run(served("overload", 11.0, end=End.REJECTED, retry_after="0")), ["every 429"]),
        (run(served("overload", 11.0, end=End.EXPIRED, deadline_s=4.0, took_s=5.1)), ["who has a deadline"]),
        (
            run(served("overload", 11.0, end=End.REJECTED, retry_after="1", priority="low")),
            ["no class, tenant or kind"],
        ),
        (replace(run(), sent=401), ["every client is accounted for"]),
        (replace(run(), unsent=1), ["every client is accounted for"]),
        (run(busy=0.5), ["engines are never idle"]),
        (replace(run(), left=["r1: waiting 1"]), ["nothing is left"]),
        (replace(run(), errors=["r1: {}"]), ["no replica logs"]),
    ],
)
def test_what_breaks_a_promise_is_seen(seen: Seen, names: list[str]) -> None:
    assert [name for name in broken(seen) if not name.startswith(tuple(names))] == []
    assert len(broken(seen)) == len(names)


def test_recovery_lasts_until_the_last_window_with_too_many_late_streams() -> None:
    """Normal is 0.2 s here. Ten late ones of thirty in two seconds are a third, and not more."""
    late = [served("after", 25.5, ttft_s=0.21) for _ in range(11)]
    assert recovery_s(run()) == 0.0
    assert recovery_s(run(*late[:10])) == 0.0
    assert recovery_s(run(*late)) == 6.0
    assert broken(run(*late)) == []


def test_what_is_not_answered_after_the_overload_is_late_too() -> None:
    rejected = [served("after", 31.5, end=End.REJECTED, retry_after="1") for _ in range(11)]
    assert recovery_s(run(*rejected)) == 12.0
    assert broken(run(*rejected)) == ["times are normal again soon after"]


def test_a_fleet_that_is_late_to_the_end_has_not_recovered() -> None:
    assert recovery_s(run(*(served("after", 39.5, ttft_s=9.0) for _ in range(11)))) == math.inf


def test_long_prompts_and_what_the_machine_made_late_are_no_sign_of_pressure() -> None:
    late = served("after", 35.5, ttft_s=9.0)
    slow = replace(late, visit=replace(late.visit, written_s=late.visit.sent_s + 1.0))
    assert recovery_s(run(*[replace(late, kind="long")] * 20)) == 0.0
    assert recovery_s(run(*[slow] * 20)) == 0.0
    assert recovery_s(run(*[late] * 20)) == 16.0


def test_shares_are_of_what_tenants_ask_for_and_the_rest_is_divided_again() -> None:
    """One tenant asks for 10 of the 70 only; the other 60 are divided as 2 to 1."""
    asked = {"modest": 10.0, "two": 100.0, "one": 100.0, "silent": 0.0}
    weights = {"modest": 4.0, "two": 2.0, "one": 1.0, "silent": 9.0}
    assert divided(70.0, asked, weights) == {"modest": 10.0, "two": 40.0, "one": 20.0}
    assert divided(500.0, asked, weights) == {"modest": 10.0, "two": 100.0, "one": 100.0}


def test_a_tenant_far_below_its_share_is_seen() -> None:
    """One of weight 4 and one of weight 1 ask for the same, and get the same."""
    more = [
        replace(served("overload", 10.0 + n / 10, end=end, retry_after="1"), tenant=tenant)
        for n in range(100)
        for tenant in ("gold", "noisy")
        for end in (End.ANSWERED, End.REJECTED)
    ]
    assert broken(run(*more)) == ["tenants get their shares"]
    assert broken(run(*(replace(one, tenant="capped") for one in more[:200]))) == []


def test_a_tenant_beyond_its_limit_is_seen_in_any_minute_of_the_run() -> None:
    """The limit is 120 a minute; with Valkey restarted empty twice that may be answered."""
    more = [replace(served("overload", 10.0 + n / 100), tenant="capped") for n in range(250)]
    assert broken(run(*more[:122])) == []
    assert broken(run(*more[:123])) == ["no tenant gets more than its limit"]
    cut = served("overload", 11.0, end=End.CUT, replica=DEAD)
    assert broken(run(*more[:240], cut, dead=DEAD)) == []
    assert broken(run(*more[:241], cut, dead=DEAD)) == ["no tenant gets more than its limit"]


def test_what_classes_get_is_not_a_matter_of_tenants() -> None:
    """The urgent class gets all it asks for, for any tenants; the shares are within classes."""
    more = [
        replace(served("overload", 10.0 + n / 10, priority=priority), tenant=tenant)
        for n in range(100)
        for tenant, priority in (("noisy", "high"), ("gold", "normal"))
    ]
    assert broken(run(*more)) == []
