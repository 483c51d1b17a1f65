"""When workers are due, and that slow probes take no place of quick ones."""

import random

import pytest

from router.fleet.timetable import FULL_S, YOUNG_S, Timetable


def table(places: int = 64) -> Timetable:
    """8 young places, 32 slow ones, 56 for all old ones."""
    return Timetable(places)


def test_workers_are_probed_in_the_order_in_which_they_are_due() -> None:
    timetable = table()
    for worker_id, due_s in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        timetable.plan(worker_id, due_s)
    assert timetable.begin(0.9, 10) == []
    assert timetable.wait_s(0.9, 5.0) == 1.0 - 0.9
    assert timetable.begin(2.0, 10) == ["a", "b"]
    assert timetable.is_running("a")
    assert timetable.due_s("a") is None
    assert timetable.wait_s(2.0, 5.0) == 1.0
    assert timetable.begin(9.0, 10) == ["c"]
    assert timetable.wait_s(9.0, 5.0) == 5.0


def test_a_worker_that_is_planned_anew_is_due_once() -> None:
    timetable = table()
    timetable.plan("a", 5.0)
    timetable.plan("a", 1.0)
    timetable.plan("b", 1.0)
    timetable.plan("b", 5.0)
    assert timetable.begin(2.0, 10) == ["a"]
    timetable.end("a")
    assert timetable.begin(9.0, 10) == ["b"]


def test_a_worker_that_is_gone_is_not_probed() -> None:
    timetable = table()
    timetable.plan("a", 1.0)
    timetable.plan("b", 1.0)
    timetable.keep(["b"])
    assert timetable.begin(2.0, 10) == ["b"]


def test_a_young_probe_keeps_its_place_for_a_second_only() -> None:
    """100 workers none of which answers: 8 begin in a second, and none waits for another's timeout."""
    timetable = table()
    names = [f"w{number:03}" for number in range(100)]
    for name in names:
        timetable.plan(name, 0.0)
    begun = [len(timetable.begin(second * YOUNG_S, 100)) for second in range(4)]
    assert begun == [8, 8, 8, 8]
    assert timetable.wait_s(3.0, 5.0) == pytest.approx(FULL_S)
    assert sum(map(timetable.is_running, names)) == 32


def test_workers_that_were_slow_take_no_place_of_quick_ones() -> None:
    """200 slow ones are due before all others, and never end."""
    timetable = table()
    for number in range(200):
        timetable.plan(f"slow{number}", 0.0, slow=True)
    assert len(timetable.begin(1.0, 1000)) == 32
    timetable.plan("quick", 1.0)
    assert timetable.begin(1.0, 1000) == ["quick"]
    timetable.end("quick")
    timetable.plan("quick", 2.0, slow=False)
    assert timetable.begin(2.0, 1000) == ["quick"]


def test_a_slow_place_is_for_the_next_slow_worker_when_its_probe_ends() -> None:
    timetable = table(16)
    for number in range(9):
        timetable.plan(f"slow{number}", float(number), slow=True)
    begun = timetable.begin(10.0, 100)
    assert begun == [f"slow{number}" for number in range(8)]
    timetable.end("slow3")
    assert timetable.begin(10.0, 100) == ["slow8"]


def test_all_probes_together_are_bounded() -> None:
    """Old ones by 56; then the young ones keep their places until they end."""
    timetable = table()
    for number in range(1000):
        timetable.plan(f"w{number}", 0.0, slow=number % 3 == 0)
    for second in range(100):
        timetable.begin(second * 2.0, 1000)
    assert sum(timetable.is_running(f"w{number}") for number in range(1000)) == 64


def test_a_worker_that_answers_is_quick_again() -> None:
    timetable = table(16)
    timetable.plan("a", 0.0, slow=True)
    assert timetable.begin(0.0, 1) == ["a"]
    timetable.end("a")
    timetable.plan("a", 1.0, slow=False)
    for number in range(20):
        timetable.plan(f"slow{number}", 0.0, slow=True)
    assert "a" in timetable.begin(1.0, 100)


def test_each_living_worker_is_probed_in_time_whatever_the_dead_ones_do() -> None:
    """A fleet of 300, half of it dead, on a clock of its own.

    The living answer at once and are due each 5 s. The dead time out after 5 s, and are due again 1 s later.
    """
    choice = random.Random(1)
    timetable = Timetable(256)
    dead = {f"w{number}": choice.random() < 0.5 for number in range(300)}
    for worker_id in dead:
        timetable.plan(worker_id, 0.0)
    ends: list[tuple[float, str]] = []
    last_s = dict.fromkeys(dead, 0.0)
    gaps_s: list[float] = []
    probes_of_dead = 0
    for tick in range(6000):
        now_s = tick / 100
        for end_s, worker_id in [entry for entry in ends if entry[0] <= now_s]:
            ends.remove((end_s, worker_id))
            timetable.end(worker_id)
            timetable.plan(worker_id, now_s + 1.0, slow=True)
        for worker_id in timetable.begin(now_s, 32):
            if dead[worker_id]:
                probes_of_dead += 1
                ends.append((now_s + 5.0, worker_id))
                continue
            gaps_s.append(now_s - last_s[worker_id])
            last_s[worker_id] = now_s
            timetable.end(worker_id)
            timetable.plan(worker_id, now_s + 5.0, slow=False)
    assert max(last_s[worker_id] for worker_id, is_dead in dead.items() if not is_dead) <= 60.0
    assert min(last_s[worker_id] for worker_id, is_dead in dead.items() if not is_dead) > 54.0
    assert max(gaps_s) <= 5.0 + 5.0
    assert sorted(gaps_s)[int(len(gaps_s) * 0.9)] < 5.1
    assert probes_of_dead > 128 * 60 / 6 * 0.8
