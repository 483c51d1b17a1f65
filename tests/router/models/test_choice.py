"""The decision on the model of one request."""

import numpy as np
from fakes.gateway import Bench

from router.models.choice import Choice
from router.models.labels import LabelIndex
from router.models.splits import Drawn


def test_an_alias_leaves_all_workers_and_is_told() -> None:
    slots = np.array([1, 2])
    choice = Choice("claude-x", "claude-*")
    assert choice.among(slots) is slots
    assert choice.told() == choice.ended(None) == {"asked_model": "claude-x", "alias": "claude-*"}


def test_a_part_of_a_split_is_counted_once_it_is_over() -> None:
    counted: list[tuple[str, str]] = []
    labels = LabelIndex(Bench().core)
    drawn = Drawn("m", "rest", "so it is", labels, lambda *each: counted.append(each), label="version=v2")
    choice = Choice(drawn=drawn)
    assert choice.told() == {"split": "rest", "split_why": "so it is"}
    assert counted == []
    assert choice.ended(None) == choice.told()
    assert counted == [("m", "rest")]
