"""Predicted ends of prefills, from a heap behind one timer."""

from typing import Any, cast

from fakes.gateway import VirtualTime

from router.gateway.prefill_ends import EARLY_S, ENDED_AT_ONCE, SKIPPED_MAX, PrefillEnds


class Stage:
    """Reservations that note when their prefill ended."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.ends = PrefillEnds(cast(Any, self.time), self.time.time)
        self.ended: dict[str, float] = {}

    def expect(self, attempt_id: str, within_s: float) -> None:
        stage = self

        class Reservation:
            def prefill_ended(self) -> None:
                assert attempt_id not in stage.ended
                stage.ended[attempt_id] = stage.time.time()

        self.ends.expect(attempt_id, cast(Any, Reservation()), self.time.time() + within_s)


def test_each_ends_when_it_is_due_whatever_the_order() -> None:
    stage = Stage()
    start_s = stage.time.time()
    due_s = {"a": 0.5, "b": 0.1, "c": 3.0, "d": 0.1, "e": 0.0, "f": 0.3}
    for attempt_id, within_s in due_s.items():
        stage.expect(attempt_id, within_s)
    stage.time.advance(10)
    assert stage.ended.keys() == due_s.keys()
    for attempt_id, ended_s in stage.ended.items():
        assert abs(ended_s - start_s - due_s[attempt_id]) <= EARLY_S
    assert stage.time.pending == 0


def test_a_reservation_that_is_over_never_ends_again() -> None:
    stage = Stage()
    for attempt_id, within_s in (("a", 0.1), ("b", 0.2), ("c", 1000.0)):
        stage.expect(attempt_id, within_s)
    for attempt_id in ("a", "c", "c"):
        stage.ends.waiting.pop(attempt_id, None)
    stage.time.advance(1)
    assert stage.ended.keys() == {"b"}
    stage.time.advance(1000)
    assert stage.ended.keys() == {"b"}
    assert stage.time.pending == 0


def test_one_that_is_due_before_all_others_is_not_late() -> None:
    stage = Stage()
    stage.expect("late", 100.0)
    stage.time.advance(1)
    stage.expect("soon", 0.1)
    assert stage.time.pending == 1
    stage.time.advance(0.2)
    assert stage.ended.keys() == {"soon"}


def test_many_of_one_moment_are_spread_over_turns_of_the_loop() -> None:
    stage = Stage()
    for number in range(2 * ENDED_AT_ONCE + 1):
        stage.expect(str(number), 0.1)
    sizes = []
    while stage.time.pending:
        stage.time.turn()
        sizes.append(len(stage.ended))
    assert sizes == [ENDED_AT_ONCE, 2 * ENDED_AT_ONCE, 2 * ENDED_AT_ONCE + 1]


def test_of_reservations_that_are_over_only_some_are_kept_until_they_would_have_been_due() -> None:
    """Predictions of minutes, answers at once."""
    stage = Stage()
    stage.expect("patient", 100.0)
    for number in range(10 * SKIPPED_MAX):
        stage.expect(str(number), 600.0)
        stage.ends.waiting.pop(str(number))
        assert len(stage.ends._heap) <= SKIPPED_MAX + 1
    stage.time.advance(200)
    assert stage.ended.keys() == {"patient"}
