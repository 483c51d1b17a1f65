"""Deadlines on a clock of their own: who is ended when, and how many timers that takes."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop

from router.proxy.deadlines import DUE_AT_ONCE_MAX, Deadlines


class Timer:
    """A timer of the clock."""

    def __init__(self, when_s: float, callback: Callable[[], None]) -> None:
        self.when_s = when_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """The part of an event loop that deadlines use; time moves when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[Timer] = []
        self.made = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(when_s, callback)
        self.timers.append(timer)
        self.made += 1
        return timer

    @property
    def running(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def turn(self) -> None:
        """One turn of the loop."""
        due = [timer for timer in self.running if timer.when_s <= self.now_s]
        self.timers = [timer for timer in self.running if timer not in due]
        for timer in due:
            timer.callback()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ended() -> list[int]:
    return []


@pytest.fixture
def deadlines(clock: Clock, ended: list[int]) -> Deadlines[int]:
    return Deadlines(cast(Any, clock), ended.append)


def test_each_is_ended_when_its_time_has_come(
    clock: Clock, deadlines: Deadlines[int], ended: list[int]
) -> None:
    deadlines.add(1, 5.0)
    clock.now_s += 2.0
    deadlines.add(2, 5.0)
    clock.now_s += 2.9
    clock.turn()
    assert ended == []
    clock.now_s += 0.1
    clock.turn()
    assert ended == [1]
    assert (1 in deadlines, 2 in deadlines) == (False, True)
    clock.now_s += 2.0
    clock.turn()
    assert ended == [1, 2]
    assert clock.running == [], "nothing is waited for any more"


def test_one_that_was_discarded_is_not_ended_and_another_may_wait_again(
    clock: Clock, deadlines: Deadlines[int], ended: list[int]
) -> None:
    deadlines.add(1, 5.0)
    deadlines.add(2, 5.0)
    deadlines.pop(1, None)
    deadlines.pop(1, None)
    clock.now_s += 3.0
    deadlines.add(2, 5.0)
    clock.now_s += 2.0
    clock.turn()
    assert ended == []
    clock.now_s += 3.0
    clock.turn()
    assert ended == [2]


def test_thousands_of_turns_of_a_connection_need_a_handful_of_timers(
    clock: Clock, deadlines: Deadlines[int], ended: list[int]
) -> None:
    """64 connections that are idle for a moment 10,000 times in 20 s, waiting for at most 5 s."""
    for number in range(10_000):
        deadlines.add(number % 64, 5.0)
        clock.now_s += 0.002
        clock.turn()
        deadlines.pop(number % 64, None)
    assert ended == []
    assert clock.made <= 5


def test_a_shorter_delay_is_kept_when_those_that_wait_are_added_anew(
    clock: Clock, deadlines: Deadlines[int], ended: list[int]
) -> None:
    for item in (1, 2):
        deadlines.add(item, 60.0)
    for item in (1, 2):
        deadlines.add(item, 1.0)
    clock.now_s += 1.0
    clock.turn()
    assert ended == [1, 2]
    assert clock.running == []


def test_many_that_are_due_at_once_are_ended_in_several_turns(
    clock: Clock, deadlines: Deadlines[int], ended: list[int]
) -> None:
    for item in range(2 * DUE_AT_ONCE_MAX + 1):
        deadlines.add(item, 1.0)
    clock.now_s += 1.0
    clock.turn()
    assert len(ended) == DUE_AT_ONCE_MAX
    clock.turn()
    clock.turn()
    assert ended == list(range(2 * DUE_AT_ONCE_MAX + 1))


def test_ending_one_may_discard_or_add_another(clock: Clock) -> None:
    ended = []

    def end(item: int) -> None:
        ended.append(item)
        deadlines.pop(2, None)
        if item == 1:
            deadlines.add(3, 1.0)

    deadlines: Deadlines[int] = Deadlines(cast(Any, clock), end)
    deadlines.add(1, 1.0)
    deadlines.add(2, 1.0)
    clock.now_s += 1.0
    clock.turn()
    assert ended == [1]
    clock.now_s += 1.0
    clock.turn()
    assert ended == [1, 3]


def test_on_the_loop_that_serves_items_may_have_no_delay_at_all() -> None:
    """Uvloop has another kind of handle for what is due already, and it knows less."""
    ended: list[str] = []

    async def run() -> None:
        deadlines: Deadlines[str] = Deadlines(asyncio.get_running_loop(), ended.append)
        deadlines.add("late", 60.0)
        for item in ("one", "other"):
            deadlines.add(item, 0.0)
        deadlines.add("late", 0.0)
        while len(ended) < 3:  # noqa: ASYNC110 - it is a deadline that ends it
            await asyncio.sleep(0)

    uvloop.run(run())
    assert ended == ["one", "other", "late"]


def test_the_item_that_has_waited_for_longest_is_known_and_since_when(clock: Clock) -> None:
    deadlines: Deadlines[str] = Deadlines(cast(Any, clock), lambda _: None)
    assert deadlines.first(8) == []
    deadlines.add("first", 10.0)
    clock.now_s += 1
    deadlines.add("second", 10.0)
    assert deadlines.first(8) == [("first", 100.0), ("second", 101.0)]
    deadlines.add("first", 10.0)
    assert deadlines.first(1) == [("second", 101.0)]
