"""How one pod is seen over time."""

from typing import Any

import msgspec
from fakes.cluster import pod

from router.discovery.pods import Pod, Refusal
from router.discovery.sighting import CALM_S, HOLD_S, Sighting
from router.discovery.watch import Selection


def parsed(**how: Any) -> Pod:
    return msgspec.convert(pod(**how), Pod)


def seen() -> Sighting:
    return Sighting(parsed(), {Selection("c", "n", "", "a=b")}, ready_s=0.0)


def test_each_failure_makes_the_next_wait_longer_up_to_a_minute() -> None:
    sighting, now_s, waits = seen(), 0.0, []
    for _ in range(8):
        now_s += 1
        sighting.follow(parsed(ready=False), now_s)
        now_s += 1
        sighting.follow(parsed(), now_s)
        waits.append(sighting.held_until_s() - now_s)
    assert waits == [*HOLD_S, HOLD_S[-1], HOLD_S[-1]]


def test_what_is_said_twice_is_one_failure() -> None:
    sighting = seen()
    for now_s in (1.0, 2.0, 3.0):
        sighting.follow(parsed(ready=False), now_s)
    assert (sighting.failures, sighting.ready_s) == (1, None)


def test_a_long_calm_is_forgiven() -> None:
    sighting = seen()
    sighting.failures = 5
    sighting.follow(parsed(ready=False), CALM_S + 1)
    assert sighting.failures == 1


def test_the_selection_with_a_role_says_whose_it_is() -> None:
    plain, decode = Selection("c", "n", "", "a=b"), Selection("c", "n", "decode", "a=b")
    assert Sighting(parsed(), {plain, decode}).scope == decode.scope


def test_why_a_pod_gets_no_requests_now() -> None:
    def reason(**how: Any) -> Refusal | None:
        sighting = seen()
        sighting.follow(parsed(**how), 1.0)
        refused = sighting.not_now()
        return refused and refused.reason

    assert reason() is None
    assert reason(ready=False) is Refusal.NOT_READY
    assert reason(phase="Pending") is Refusal.NOT_RUNNING
    deleted = pod()
    deleted["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
    sighting = Sighting(msgspec.convert(deleted, Pod), set())
    assert not sighting.serves
    refused = sighting.not_now()
    assert refused is not None
    assert refused.reason is Refusal.DELETING
