"""The decision on the model of one request."""

import numpy as np

from router.models.choice import Choice


def test_an_alias_leaves_all_workers_and_is_told() -> None:
    slots = np.array([1, 2])
    choice = Choice("claude-x", "claude-*")
    assert choice.among(slots) is slots
    assert choice.told() == {"asked_model": "claude-x", "alias": "claude-*"}
