"""The plan is a play of the right size, and the tables show the observations."""

import pytest

from loadtest.chaos import End, Visit, overload
from loadtest.chaos.crowd import Served
from loadtest.chaos.overload import CALM_RATIO, OverloadPlan
from loadtest.chaos.play import Play, Reading, Sample, Seen


def served(scene: str, at_s: float, end: End) -> Served:
    ttft_s = 0.123 if end is End.ANSWERED else None
    code = "queue_full" if end is End.REJECTED else ""
    seen = Visit(end, at_s, at_s, at_s + 0.2, ttft_s, 200, code, "2" if code else None, "")
    return Served("short", "high", "silver", scene, "r1", True, None, 500, seen)


def test_capacity_grows_with_the_engines_and_load_is_of_it() -> None:
    three, six = OverloadPlan(engines=3), OverloadPlan(engines=6)
    assert six.capacity_per_s == pytest.approx(2 * three.capacity_per_s)
    calm, high, after = six.play.scenes
    assert (calm.rate_per_s, after.rate_per_s) == (CALM_RATIO * six.capacity_per_s,) * 2
    assert high.rate_per_s == 3 * six.capacity_per_s
    assert [each.name for each in six.play.troupe.parts] == ["e1", "e2", "e3", "e4", "e5", "e6"]


def test_in_a_disaster_the_replica_is_gone_to_the_end_and_valkey_for_a_while() -> None:
    assert OverloadPlan().play.strikes == ()
    valkey, replica = OverloadPlan(before_s=10, overload_s=100, after_s=10, disaster=True).play.strikes
    assert (valkey.kind, valkey.at_s, valkey.lasts_s) == ("Valkey killed", 50.0, 20.0)
    assert (replica.target, replica.at_s, replica.lasts_s) == ("r4", 60.0, 60.0)


@pytest.mark.parametrize(("left", "status"), [([], 0), (["r1: waiting 1"], 1)])
def test_the_status_says_whether_a_promise_was_broken(
    left: list[str], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plays: list[Play] = []
    requests = [
        *(served("before", at, End.ANSWERED) for at in range(10)),
        *(served("overload", 10 + at, end) for at in range(9) for end in (End.ANSWERED, End.REJECTED)),
        *(served("after", 20 + at, End.ANSWERED) for at in range(10)),
    ]

    async def run(play: Play) -> Seen:
        plays.append(play)
        seen = Seen(play, requests, len(requests), left=left)
        seen.readings = [Reading(at_s, busy_s) for at_s, busy_s in ((0, 0), (10, 0), (20, 39), (30, 39))]
        seen.samples = [Sample("overload", (7, 9), (0, 1))]
        seen.metrics["cacheway_queue_inversions_total"] = 4
        return seen

    monkeypatch.setattr("loadtest.chaos.promises.run_play", run)
    assert overload.main(["--overload-s", "9", "--", "--policy", "random"]) == status
    assert plays == [OverloadPlan(overload_s=9.0, flags=["--policy", "random"]).play]
    text = capsys.readouterr().out
    assert text.count("BROKEN") == status
    assert "123 ms / 123 ms / 123 ms" in text
    assert "9 queue_full" in text
    assert "waiting at most 9, replicas at most 2 apart" in text
    assert "in 1 of 2 looks an idle worker" in text
    assert "cacheway_queue_inversions_total 4" in text
