"""Who serves which of those that wait."""

import numpy as np
import pytest

from policies import ANY_BUCKET, Slots
from router.gateway.queue_lanes import Lanes, lane_of, model_and_bucket


@pytest.mark.parametrize("model", [None, "m", "org/name:tag", "a|b", "|"])
@pytest.mark.parametrize("bucket", [ANY_BUCKET, 0, 12])
def test_a_lane_says_what_it_was_named_after(model: str | None, bucket: int) -> None:
    assert model_and_bucket(lane_of(model, bucket)) == (model, bucket)


def test_lanes_are_followed_when_workers_or_lanes_change_and_not_otherwise() -> None:
    slots: dict[str, Slots] = {"a|": np.array([0, 2]), "b|": np.array([2, 5]), "c|": np.array([7])}
    asked: list[str] = []

    def slots_of(lane: str) -> Slots:
        asked.append(lane)
        return slots[lane]

    lanes = Lanes(slots_of)
    assert (lanes.of(2), lanes.slots.tolist(), lanes.knows("a|")) == ((), [], False)
    lanes.follow(["b|", "a|"])
    assert [list(lanes.of(slot)) for slot in (0, 2, 5, 7)] == [["a|"], ["a|", "b|"], ["b|"], []]
    assert lanes.slots.tolist() == [0, 2, 5]
    assert lanes.knows("a|")
    before = lanes.slots
    lanes.follow(["a|", "b|"])
    assert lanes.slots is before
    slots["a|"] = np.array([0])
    lanes.follow(["a|", "b|"])
    assert [list(lanes.of(slot)) for slot in (0, 2)] == [["a|"], ["b|"]]
    lanes.follow(["a|", "b|", "c|"])
    assert list(lanes.of(7)) == ["c|"]
    lanes.follow(["c|"])
    assert (list(lanes.of(0)), lanes.slots.tolist()) == ([], [7])
    assert lanes.serving("b|").tolist() == [2, 5]
