from loadtest.simulator.clock import VirtualClock


def test_calls_are_made_in_order_of_time_and_then_of_asking() -> None:
    clock, seen = VirtualClock(), []
    for name, when in (("c", 2.0), ("a", 1.0), ("d", 2.0), ("b", 1.0)):
        clock.call_at(when, lambda name=name: seen.append((name, clock.time())))

    clock.run()

    assert seen == [("a", 1.0), ("b", 1.0), ("c", 2.0), ("d", 2.0)]
    assert clock.events == 4


def test_a_call_in_the_past_is_made_now_behind_what_is_already_due() -> None:
    clock, seen = VirtualClock(), []

    def first() -> None:
        clock.call_at(0.5, lambda: seen.append(("late", clock.time())))

    clock.call_at(1.0, first)
    clock.call_at(1.0, lambda: seen.append(("due", clock.time())))
    clock.run()

    assert seen == [("due", 1.0), ("late", 1.0)]


def test_a_cancelled_call_is_not_made_and_moves_no_time() -> None:
    clock, seen = VirtualClock(), []
    clock.call_later(1.0, lambda: seen.append("kept"))
    timer = clock.call_later(5.0, lambda: seen.append("cancelled"))
    timer.cancel()
    timer.cancel()

    clock.run()

    assert seen == ["kept"]
    assert clock.time() == 1.0
