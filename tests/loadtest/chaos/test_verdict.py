"""Each promise is broken by its fault, and excused by its excuses."""

from collections import Counter

import pytest

from loadtest.chaos.agents import Asked
from loadtest.chaos.fault_injector import MISCHIEF
from loadtest.chaos.record import ActSeen, Record, Sample, Struck
from loadtest.chaos.schedule import Act, Strike
from loadtest.chaos.verdict import judge_act, judge_growth
from loadtest.chaos.visitor import End, Visit

MENDED_S = 20.0
E1 = "host:1"


def asked(
    at_s: float,
    end: End = End.ANSWERED,
    *,
    status: int = 200,
    kind: str = "plain",
    replica: str = "r1",
    worker: str = E1,
    reusable: int = 0,
    cached: int | None = None,
    wrong: str = "",
    name: str = "",
) -> Asked:
    visit = Visit(end, at_s, at_s, at_s + 0.5, None, status, "", None, "", worker=worker)
    return Asked(name or f"id-{at_s:g}", kind, replica, True, reusable, cached, visit, wrong)


def act(*struck: Struck) -> ActSeen:
    strikes = tuple(each.strike for each in struck)
    return ActSeen(Act(1, strikes), 0.0, list(struck), mended_s=MENDED_S, hit_ratio=1.0)


def struck(kind: str, target: str, *, began_s: float = 12.0, ended_s: float = MENDED_S) -> Struck:
    injector = next(each for each in MISCHIEF if each.kind.name == kind)
    strike = Strike(3.0, kind, target, ended_s - began_s)
    worker_id = E1 if target == "e1" else ""
    return Struck(strike, injector.kind.group, injector.blame, began_s, ended_s, worker_id)


def broken(seen: ActSeen, *requests: Asked, came: dict[str, Counter[str]] | None = None) -> list[str]:
    arrived = {one.request_id: Counter(plain=1) for one in requests} | (came or {})
    return [each.promise for each in judge_act(seen, requests, arrived)]


def test_answers_and_clients_who_left_are_as_promised() -> None:
    assert broken(act(struck("disk full", "r1")), asked(13.0), asked(14.0, End.LEFT)) == []


@pytest.mark.parametrize("end", [End.CUT, End.REFUSED, End.FAILED, End.HUNG])
@pytest.mark.parametrize("kind", ["Valkey killed", "disk full", "clients stall", "silent to Valkey"])
def test_nothing_but_workers_and_replicas_may_cost_an_answer(end: End, kind: str) -> None:
    assert broken(act(struck(kind, "r1")), asked(13.0, end)) == ["each request is answered"]


def test_who_was_at_a_killed_replica_may_lose_the_connection_and_nobody_else() -> None:
    seen = act(struck("replica killed", "r1"))
    assert broken(seen, asked(13.0, End.CUT), asked(13.0, End.REFUSED, name="b")) == []
    assert broken(seen, asked(13.0, End.CUT, replica="r2")) == ["each request is answered"]
    assert broken(seen, asked(13.0, End.HUNG)) == ["each request is answered"]
    assert broken(seen, asked(MENDED_S + 5, End.CUT)) == ["each request is answered"]


def test_an_answer_that_had_begun_may_end_with_its_worker_but_none_may_fail_before() -> None:
    seen = act(struck("worker killed", "e1"))
    assert broken(seen, asked(13.0, End.FAILED), asked(13.0, End.CUT, name="whole")) == []
    assert broken(seen, asked(13.0, End.FAILED, worker="host:2")) == ["each request is answered"]
    assert broken(seen, asked(13.0, End.FAILED, status=502)) == ["each request is answered"]
    assert broken(seen, asked(2.0, End.FAILED)) == ["each request is answered"]


def test_a_refusal_needs_workers_that_failed() -> None:
    refused = asked(13.0, End.REJECTED, status=429)
    assert broken(act(struck("worker killed", "e1")), refused) == []
    assert broken(act(struck("Valkey killed", "all")), refused) == [
        "no request is refused while workers are well"
    ]


def test_a_wrong_byte_is_never_excused() -> None:
    seen = act(struck("replica killed", "r1"))
    assert broken(seen, asked(13.0, End.CUT, wrong="other words")) == ["every byte of an answer is right"]


def test_work_is_done_once_unless_workers_failed_and_never_by_nobody() -> None:
    one = asked(13.0, name="one")
    for kind, promises in (("Valkey killed", ["no work is done twice"]), ("worker hung", [])):
        seen = act(struck(kind, "e1" if kind == "worker hung" else "all"))
        assert broken(seen, one, came={"one": Counter(plain=2)}) == promises
    seen = act(struck("Valkey killed", "all"))
    assert broken(seen, one, came={"one": Counter(prefill=1, decode=1)}) == []
    assert broken(seen, one, came={"one": Counter()}) == ["each request is answered"]


def turns(until_s: float, ratio: float) -> list[Asked]:
    """Ten turns a second behind the mending, which find so much until then and all afterwards."""
    return [
        asked(
            MENDED_S + at / 10,
            kind="turn",
            reusable=1000,
            cached=round(1000 * (ratio if at / 10 < until_s else 1.0)),
            name=f"turn-{at}",
        )
        for at in range(140)
    ]


def test_affinity_is_back_when_no_later_window_finds_less_than_nine_tenths() -> None:
    seen = act(struck("worker killed", "e1"))
    assert broken(seen, *turns(4.0, 0.2)) == []
    assert seen.recovery_s == pytest.approx(4.0, abs=0.5)
    assert seen.worst_ratio == pytest.approx(0.2)


def test_affinity_that_does_not_come_back_breaks_a_promise() -> None:
    seen = act(struck("worker killed", "e1"))
    assert broken(seen, *turns(14.0, 0.5)) == ["affinity is back in 10 s"]
    assert seen.recovery_s is None


def test_a_machine_that_stood_still_is_given_as_much_more() -> None:
    seen = act(struck("worker killed", "e1"))
    seen.late_s = 4.0
    assert broken(seen, *turns(11.5, 0.5)) == []


def test_too_few_requests_say_nothing_about_affinity() -> None:
    seen = act(struck("worker killed", "e1"))
    assert broken(seen, *turns(14.0, 0.5)[::20]) == []


def record(sizes: list[int], files: list[int] | None = None) -> Record:
    samples = [
        Sample(float(at), "r1", 1, size << 20, (files or [50] * len(sizes))[at])
        for at, size in enumerate(sizes)
    ]
    return Record(1, cabled=True, clients=2, samples=samples)


def test_a_replica_that_grows_breaks_a_promise_and_one_that_warms_up_does_not() -> None:
    assert judge_growth(record([60, 90, 120, 121, 122, 123, 124, 125])) == []
    grown = judge_growth(record([100, 150, 200, 300, 400, 500, 600, 700]))
    assert [each.promise for each in grown] == ["memory is bounded"]


def test_files_that_stay_open_break_a_promise() -> None:
    leaked = judge_growth(record([100] * 8, [50, 50, 60, 100, 200, 300, 400, 500]))
    assert [each.promise for each in leaked] == ["open files are bounded"]
