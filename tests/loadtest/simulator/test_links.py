import random
from functools import partial

import pytest

from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.links import Link


def test_transfers_share_the_capacity_fairly() -> None:
    """100 bytes alone in the first second; then two share 100 B/s until the short one has its 50 bytes."""
    clock, ends = VirtualClock(), {}
    link = Link(clock, bytes_per_s=100.0)
    link.send(200, lambda: ends.setdefault("long", clock.time()))
    clock.call_at(1.0, lambda: link.send(50, lambda: ends.setdefault("short", clock.time())))

    clock.run()

    assert ends == pytest.approx({"short": 2.0, "long": 2.5})
    assert link.busy_s == pytest.approx(2.5)
    assert link.sent_bytes == 250


def test_the_round_trip_comes_on_top() -> None:
    clock, ends = VirtualClock(), []
    link = Link(clock, bytes_per_s=100.0, rtt_s=0.25)
    link.send(100, lambda: ends.append(clock.time()))

    clock.run()

    assert ends == [1.25]


def test_work_is_conserved_whatever_the_order() -> None:
    """While anything is under way the whole capacity is used: busy time is bytes over capacity."""
    chance = random.Random(3)
    clock, ends = VirtualClock(), []
    link = Link(clock, bytes_per_s=10.0)
    for _ in range(200):
        at_s, size = chance.uniform(0, 50), chance.uniform(0, 5)
        clock.call_at(at_s, partial(link.send, size, lambda: ends.append(clock.time())))

    clock.run()

    assert len(ends) == 200
    assert link.transfers == 0
    assert link.busy_s == pytest.approx(link.sent_bytes / 10.0)


def test_only_the_rest_of_an_overlapped_transfer_is_exposed() -> None:
    """10 s at 100 B/s carry 1,000 of 1,500 bytes; a short one still has its last of 10 layers to send."""
    link = Link(VirtualClock(), bytes_per_s=100.0)

    assert link.exposed_bytes(1500, compute_s=10.0, layers=10) == pytest.approx(500)
    assert link.exposed_bytes(100, compute_s=10.0, layers=10) == pytest.approx(10)
