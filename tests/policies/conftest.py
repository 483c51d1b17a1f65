"""Builders of what policies see: one request, and candidates given by the columns that matter."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import settings

from policies import Candidates, RequestView

settings.register_profile("long", max_examples=2_000, deadline=None)

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]


def _request(
    prompt_tokens: float = 4000.0, *, key: int = 7, prefix_key: int = 7, sequence: int = 0
) -> RequestView:
    return RequestView(key, prefix_key, prompt_tokens, 100.0, sequence)


def _candidates(**columns: Sequence[float]) -> Candidates:
    """Idle workers that prefill 1,000 tokens/s at any context, unless columns say otherwise."""
    n = len(next(iter(columns.values())))
    zero: Sequence[float] = [0.0] * n
    defaults: dict[str, Sequence[float]] = {
        "matched_tokens": columns.get("safe_tokens", zero),
        "b_s": [0.001] * n,
        "c0_tokens": [float("inf")] * n,
    }
    names = [name for name in Candidates.__struct_fields__ if name not in ("slots", "worker_hash")]
    return Candidates(
        slots=np.array(columns.get("slots", range(n)), dtype=np.intp),
        worker_hash=np.array(columns.get("worker_hash", range(1, n + 1)), dtype=np.uint64),
        **{name: np.array(columns.get(name, defaults.get(name, zero)), dtype=np.float64) for name in names},
    )


@pytest.fixture(scope="session")
def make_request() -> MakeRequest:
    return _request


@pytest.fixture(scope="session")
def make_candidates() -> MakeCandidates:
    return _candidates
