"""One window of requests gives the same decisions on every run: fixed seeds, a virtual clock, no chance."""

import hashlib
import subprocess
import sys
from collections.abc import Iterable
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
import pytest

from loadtest.engine.tokens import TOKEN_BYTES
from loadtest.traces import PromptText, TraceRequest, cut_window, read_trace, spread_arrivals
from policies import (
    FULL_ATTENTION,
    POLICIES,
    Chosen,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    Op,
    Placed,
    RequestView,
    WorkerPut,
    make_policy,
    place,
)
from radix import chain_bytes, root_hash

TRACE = Path(__file__).parents[3] / "shared/traces/mooncake_conversation_first60.jsonl.gz"
START_US = 1_000_000_000


def synthetic_window() -> list[TraceRequest]:
    """Sixty seconds of 40 sessions that grow, for where there is no trace."""
    random = np.random.default_rng(5)
    rows = []
    for session in range(40):
        ids = [0, 1, 1000 + 50 * session]
        for turn in range(int(random.integers(2, 8))):
            arrival_s = session * 1.2 + turn * 3.0
            rows.append(TraceRequest(arrival_s, 512 * len(ids), 200, tuple(ids)))
            ids = ids + [1000 + 50 * session + len(ids) + n for n in range(int(random.integers(1, 4)))]
    return sorted(rows, key=lambda row: row.arrival_s)


def decisions(rows: Iterable[TraceRequest], policy_name: str) -> str:
    """Place a window on eight workers in virtual time; a hash of every choice and its prediction."""
    fleet, policy, text = (
        FleetState(FleetRules(capacity_tokens=500_000)),
        make_policy(policy_name),
        PromptText(1),
    )
    for number in range(8):
        fleet.apply(WorkerPut(f"w{number}:1", 1, "static", f"http://w{number}:1"))
    slots = np.arange(8)
    root = root_hash(1, b"trace")
    later: list[tuple[int, int, Op]] = []
    digest = hashlib.sha256()
    for number, row in enumerate(rows):
        now_us = START_US + round(row.arrival_s * 1e6)
        while later and later[0][0] <= now_us:
            fleet.apply(heappop(later)[2])
        path = chain_bytes(text.render(row).encode(), root, 256 * TOKEN_BYTES)
        candidates = fleet.candidates(slots, (path,), FULL_ATTENTION, float(row.input_tokens), 256.0, now_us)
        key = root_hash(2, path)
        chosen = place(RequestView(key, key, float(row.input_tokens), 300.0, number), candidates, policy)
        assert isinstance(chosen, Chosen)
        worker = fleet.at_slot(chosen.slot).worker_id
        digest.update(repr((worker, chosen)).encode())
        fleet.apply(
            Placed(
                f"r{number}",
                now_us,
                worker,
                "one",
                round(chosen.service_s * 1e6),
                chosen.uncached_tokens,
                row.input_tokens + row.output_tokens,
                (path,),
                False,
            )
        )
        first_us = now_us + round(chosen.estimated_ttft_s * 1e6)
        heappush(later, (first_us, 2 * number, FirstToken(f"r{number}", first_us)))
        end_us = first_us + 20_000 * row.output_tokens
        heappush(later, (end_us, 2 * number + 1, Finished(f"r{number}", end_us)))
    return digest.hexdigest()


@pytest.mark.no_cover
@pytest.mark.parametrize("policy", POLICIES)
def test_a_window_of_sessions_is_decided_the_same_again(policy: str) -> None:
    assert decisions(synthetic_window(), policy) == decisions(synthetic_window(), policy)


@pytest.mark.skipif(not TRACE.exists(), reason=f"no trace at {TRACE}")
def test_a_window_of_a_real_trace_is_decided_the_same_by_another_process() -> None:
    """With another hash seed, so that no order of a set or dictionary of strings may matter."""
    rows = spread_arrivals(cut_window(read_trace(TRACE), 0.0, 60.0), seed=1)
    assert len(rows) > 100
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_replay as t;"
        "rows = t.spread_arrivals(t.cut_window(t.read_trace(t.TRACE), 0.0, 60.0), seed=1);"
        "print(t.decisions(rows, 'expected_cost'))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        env={"PYTHONHASHSEED": "4711", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == decisions(rows, "expected_cost")
