"""A module of policies on Python's path, as a user would write it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from policies import Candidates, FleetState, Placed, RequestView, WorkerPut
from radix import FULL_ATTENTION
from router.own_policies import load_rule

HEAD = """
import time
import numpy as np
class Counting:
    unit = "calls"
    def __call__(self, request, workers):
        return workers.inflight_requests
"""

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module's code; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    names: list[str] = []

    def written(code: str) -> str:
        name = f"own_{tmp_path.name.replace('-', '_')}_{len(names)}"
        (tmp_path / f"{name}.py").write_text(HEAD + code)
        names.append(name)
        return name

    yield written
    for name in names:
        sys.modules.pop(name, None)
    load_rule.cache_clear()


@pytest.fixture
def make_request() -> Callable[..., RequestView]:
    """A request with a key."""
    return lambda key=7: RequestView(key, 1, 1000.0, 100.0, 0)


@pytest.fixture
def make_candidates() -> Callable[..., Candidates]:
    """Workers with so many requests in flight, and nothing cached."""

    def made(inflight_requests: list[float]) -> Candidates:
        fleet = FleetState()
        for number, requests in enumerate(inflight_requests):
            fleet.apply(WorkerPut(f"w{number}", 1, "static", f"http://w{number}:1"))
            for each in range(int(requests)):
                fleet.apply(Placed(f"{number}-{each}", 1, f"w{number}", "r", 1000, 10, 20, (b"",)))
        slots = np.arange(len(inflight_requests))
        return fleet.candidates(slots, (), FULL_ATTENTION, 1000.0, 256.0, 2)

    return made
