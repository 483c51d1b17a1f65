"""Failures of sources of pods."""

from router.discovery.source import ApiFailure, Gone, Trouble
from router.errors import StateError


def test_a_failure_says_what_kind_it_is_and_is_nobodys_fault_but_the_states() -> None:
    """Code that handles `StateError` degrades and goes on."""
    failure = ApiFailure(Trouble.FORBIDDEN, "HTTP 403")
    assert isinstance(failure, StateError)
    assert (failure.trouble, failure.message, failure.code) == (
        Trouble.FORBIDDEN,
        "HTTP 403",
        "kubernetes_unavailable",
    )
    assert isinstance(Gone(Trouble.GONE, ""), ApiFailure)
