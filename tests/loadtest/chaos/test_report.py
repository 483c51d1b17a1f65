"""The report shows everything that counts, and nothing that a browser would run."""

import json
from collections import Counter

from loadtest.chaos.fault_injector import Blame
from loadtest.chaos.record import ActSeen, Broken, Record, Sample, Struck
from loadtest.chaos.report import as_json, as_page, lines
from loadtest.chaos.schedule import Act, Strike


def record(*broken: Broken, cabled: bool = True) -> Record:
    strike = Strike(3.0, "worker killed", "e1", 4.0)
    seen = ActSeen(Act(1, (strike,)), 103.0, recovery_s=2.5, broken=list(broken))
    seen.struck = [Struck(strike, "worker", Blame.WORKER, 106.0, 111.0, "host:1")]
    seen.ends = Counter(answered=98, left=2)
    return Record(
        7,
        cabled=cabled,
        clients=24,
        began_s=100.0,
        seconds=60.0,
        warm_ratio=0.97,
        acts=[seen],
        ends=Counter(answered=1198, left=2),
        sent=1200,
        samples=[Sample(100.0 + at, "r1", 1 + at // 2, (100 + at) << 20, 50 + at) for at in range(4)],
        counters=Counter({'cacheway_redispatches_total{reason="x"}': 5, "cacheway_ops_dropped_total": 1}),
    )


def test_the_terminal_is_told_every_count() -> None:
    text = "\n".join(lines(record()))
    for fact in ("1,200", "1,198 answered", "1 worker killed", "redispatches 5", "2.5 s", "20.0 requests/s"):
        assert fact in text
    assert "2 lives" in text
    assert text.endswith("all promises were kept")


def test_what_was_broken_is_told_with_its_moment() -> None:
    text = "\n".join(lines(record(Broken("nothing is left", "r1: waiting 3", 112.0))))
    assert "BROKEN at 12.0 s: nothing is left: r1: waiting 3" in text
    assert text.endswith("1 promises were broken")


def test_a_run_without_cables_says_so() -> None:
    assert "proxies before two workers" in "\n".join(lines(record(cabled=False)))
    assert "proxies before two workers" in as_page(record(cabled=False))


def test_the_figures_are_json() -> None:
    figures = json.loads(as_json(record(Broken("x", "y", 112.0))))
    assert figures["ends"] == {"answered": 1198, "left": 2}
    assert figures["acts"][0]["struck"][0] == {
        "kind": "worker killed",
        "target": "e1",
        "at_s": 6.0,
        "lasted_s": 5.0,
    }
    assert figures["broken"] == [{"promise": "x", "seen": "y", "at_s": 12.0}]
    assert figures["memory"]["r1"]["lives"] == 2


def test_the_page_escapes_what_others_wrote() -> None:
    page = as_page(record(Broken("x", "<script>alert(1)</script>", 112.0)))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "1 promises were broken" in page


def test_a_run_in_which_nothing_came_to_pass_can_be_told() -> None:
    empty = Record(1, cabled=True, clients=1)
    assert "none" in "\n".join(lines(empty))
    assert "All promises were kept" in as_page(empty)
