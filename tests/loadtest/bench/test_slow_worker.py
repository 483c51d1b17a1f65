from random import Random

import numpy as np
import pytest
from fakes.workloads import arrivals

from loadtest.bench.slow_worker import run, slow_fleet


def test_a_slow_worker_that_is_priced_as_it_is_costs_less_time_to_first_token() -> None:
    """A prompt takes 0.7 s, on the slow one of four workers 1.4 s; they are busy for a third of the time."""
    chance, now_s, times_s = Random(1), 0.0, []
    for _ in range(1_200):
        now_s += chance.expovariate(1.6)
        times_s.append(now_s)
    workload = arrivals(times_s, tokens=16_000)
    mean_s, found = {}, {}
    for learns in (False, True):
        result, found[learns] = run(workload, slow_fleet("dense-70b", 0.5, workers=4), learns=learns)
        records = result.records
        later = records.arrival_s > 200.0
        mean_s[learns] = float(np.mean((records.first_s - records.arrival_s)[later]))
    assert found[False] == {}
    assert found[True] == {"slow-000": pytest.approx(2.0, rel=0.1)}
    assert mean_s[True] < 0.9 * mean_s[False]


def test_of_equal_workers_nothing_is_learned_and_all_is_decided_alike() -> None:
    workload = arrivals([0.4 * number for number in range(400)], tokens=16_000)
    (one, found), (other, _) = (
        run(workload, slow_fleet("dense-70b", 1.0, workers=4), learns=learns) for learns in (True, False)
    )
    assert found == {}
    assert one.decisions_digest == other.decisions_digest
