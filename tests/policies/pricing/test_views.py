"""Views are frozen, and as long as their columns."""

from collections.abc import Callable

import pytest

from policies import Candidates


def test_candidates_are_as_many_as_their_rows(make_candidates: Callable[..., Candidates]) -> None:
    assert len(make_candidates(safe_tokens=[1.0, 2.0, 3.0])) == 3


def test_a_view_cannot_be_changed(make_candidates: Callable[..., Candidates]) -> None:
    candidates = make_candidates(safe_tokens=[1.0])
    with pytest.raises(AttributeError):
        candidates.slow = candidates.slow  # type: ignore[misc]
