"""A fleet parted by the length of requests."""

import numpy as np
from fakes.study import cell

from loadtest.simulator.simulation import simulate
from loadtest.simulator.workload import Session, SimRequest, Workload
from loadtest.study.runs import configured


def request(tokens: int) -> SimRequest:
    blocks = b"".join(number.to_bytes(8, "little") for number in range(tokens, tokens + tokens // 64))
    return SimRequest(blocks, tokens, 50)


def test_a_fleet_is_divided_as_the_paper_divides_its_own() -> None:
    assert not configured(cell(traffic="agentic-64")).bucket_workers
    small = configured(cell(traffic="agentic-64", buckets=True))
    assert small.bucket_workers == ((65_536, 2), (262_144, 4), (1_048_576, 2))


def test_every_request_begins_in_the_bucket_of_its_length() -> None:
    """Far apart in time, so that no request waits and none gains by leaving."""
    lengths = [1_000, 100_000, 2_000, 300_000, 3_000]
    sessions = tuple(Session(1000.0 * at, (request(tokens),)) for at, tokens in enumerate(lengths))

    records = simulate(Workload("w", sessions), configured(cell(traffic="agentic-64", buckets=True))).records

    bucket = np.repeat((0, 1, 2), (2, 4, 2))[records.worker]
    assert bucket.tolist() == [0, 1, 0, 2, 0]
