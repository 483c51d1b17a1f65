"""The next of the jobs that wait."""

from math import inf
from types import SimpleNamespace
from typing import Any

from loadtest.engine.waiting import WaitingJobs


def job(name: str, ready_s: float = 0.0, key: float = 0.0) -> Any:
    return SimpleNamespace(name=name, lease=SimpleNamespace(ready_s=ready_s), key=key)


def queue(*jobs: Any, key: Any = None, **more: Any) -> WaitingJobs:
    waiting = WaitingJobs(key, **more)
    for one in jobs:
        waiting.push(one)
    return waiting


def taken(waiting: WaitingJobs, room: int, now_s: float = 0.0) -> list[str]:
    """Names of the jobs admitted while there is room for this number."""
    names = []
    for one in waiting.next(now_s):
        if len(names) == room:
            break
        waiting.remove(one)
        names.append(one.name)
    return names


def test_they_go_in_order_of_arrival_past_those_whose_prefetch_runs() -> None:
    waiting = queue(job("a", ready_s=5.0), job("b"), job("c", ready_s=9.0), job("d"))

    assert taken(waiting, 9) == ["b", "d"]
    assert taken(waiting, 9, now_s=9.0) == ["a", "c"]


def test_one_without_room_holds_up_those_behind_it() -> None:
    """The caller leaves a job in the queue if there was no room for it."""
    for key in (None, lambda one: one.key):
        assert [one.name for one in queue(job("a"), job("b"), key=key).next(0.0)] == ["a"]


def test_the_smallest_key_goes_first_and_equals_by_arrival() -> None:
    waiting = queue(job("a", key=2), job("b", key=1), job("c", key=2), key=lambda one: one.key)

    assert taken(waiting, 9) == ["b", "a", "c"]


def test_beyond_128_keys_are_asked_of_the_first_ones_or_of_nobody() -> None:
    """128 others and one with the best key behind them."""
    many = [job(str(number), key=1000 - number) for number in range(128)]
    last = job("last", key=-1)

    assert taken(queue(*many, last, key=lambda one: one.key), 1) == ["127"]
    assert taken(queue(*many, last, key=lambda one: one.key, arrival_beyond=True), 1) == ["0"]
    assert taken(queue(*many[1:], last, key=lambda one: one.key, arrival_beyond=True), 1) == ["last"]


def test_it_knows_when_looking_again_makes_sense() -> None:
    """Never if a job waits for room: room comes from the running jobs."""
    assert queue().ready_s(0.0) == inf
    assert queue(job("a", ready_s=7.0), job("b", ready_s=3.0)).ready_s(0.0) == 3.0
    assert queue(job("a", ready_s=7.0), job("b")).ready_s(0.0) == inf
