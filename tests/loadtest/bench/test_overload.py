"""The tables of the overload show what was seen, and the status says whether a promise was broken."""

from dataclasses import replace
from typing import Any

import pytest

from loadtest.bench import overload
from loadtest.chaos import End, OverloadPlan, OverloadRun, Visit
from loadtest.chaos.crowd import Served
from loadtest.chaos.overload import Sample


def served(phase: str, at_s: float, end: End) -> Served:
    ttft_s = 0.123 if end is End.ANSWERED else None
    code = "queue_full" if end is End.REJECTED else ""
    seen = Visit(end, at_s, at_s, at_s + 0.2, ttft_s, 200, code, "2" if code else None, "")
    return Served("short", "high", "silver", phase, "http://r1", True, None, 500, seen)


def run_of(plan: OverloadPlan) -> OverloadRun:
    requests = [
        *(served("before", at, End.ANSWERED) for at in range(10)),
        *(served("overload", 10 + at, end) for at in range(9) for end in (End.ANSWERED, End.REJECTED)),
        *(served("after", 20 + at, End.ANSWERED) for at in range(10)),
    ]
    return OverloadRun(
        plan,
        served=requests,
        sent=len(requests),
        stopped_s=20.0,
        samples=[Sample(11.0, "overload", (7, 9), (0, 1))],
        busy=0.95,
        metrics={"cacheway_queue_inversions_total": 4.0},
    )


@pytest.mark.parametrize(("left", "status"), [([], 0), (["r1: waiting 1"], 1)])
def test_the_status_says_whether_a_promise_was_broken(
    left: list[str], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[OverloadPlan] = []

    async def run(plan: OverloadPlan) -> OverloadRun:
        plans.append(plan)
        return replace(run_of(plan), left=left)

    def told(*arguments: Any) -> None:
        monkeypatch.setattr("sys.argv", ["overload", *arguments])

    monkeypatch.setattr(overload, "run_overload", run)
    told("--disaster", "--overload-s", "9", "--", "--policy", "random")
    assert overload.main() == status
    assert plans == [OverloadPlan(disaster=True, overload_s=9.0, flags=["--policy", "random"])]
    text = capsys.readouterr().out
    assert text.count("BROKEN") == status
    assert "123 ms / 123 ms / 123 ms" in text
    assert "9 queue_full" in text
    assert "waiting at most 9, replicas at most 2 apart" in text
    assert "in 1 of 2 looks an idle worker" in text
    assert "cacheway_queue_inversions_total 4" in text
