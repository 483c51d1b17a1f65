"""A split request costs the same, priced as columns and one by one."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Candidates
from policies.disaggregation.ships import Ships

seconds = st.floats(0, 10)
routes = st.lists(st.tuples(seconds, seconds, seconds, st.floats(0, 1)), min_size=1, max_size=3)


@given(st.data(), routes)
def test_a_split_costs_the_same_in_columns_and_one_by_one(
    make_candidates: Callable[..., Candidates], data: st.DataObject, priced: list[tuple[float, ...]]
) -> None:
    n = data.draw(st.integers(1, 6))
    route = data.draw(st.lists(st.integers(0, len(priced)), min_size=n, max_size=n))
    given = {
        name: data.draw(st.lists(st.integers(low, 20).map(float), min_size=n, max_size=n))
        for name, low in (("backlog_s", 0), ("inflight_requests", 10), ("safe_tokens", 0))
    }
    workers = make_candidates(**given)
    workers.loads.prefill_requests[:n] = data.draw(st.lists(st.integers(0, 10), min_size=n, max_size=n))
    columns = np.array([(0.0, 0.0, 0.0, 0.0), *priced]).T
    splits = np.array([float(number > 0) for number in route])
    ships = Ships(np.array(route), columns[0], columns[1], columns[2], columns[3], splits)
    workers = msgspec.structs.replace(workers, ships=ships)

    times = workers.times(4000.0)
    timings = workers.timings(4000.0, workers.slow.few)

    for row, timing in enumerate(timings):
        s = timing.service_s
        wait_s, base_s, send_s, overlap_ratio = columns[:, route[row]]
        decoding = workers.loads.inflight_requests[row] - workers.loads.prefill_requests[row]
        exposed_s = base_s + max(send_s - overlap_ratio * s, 0.0)
        assert timing.ready_s == pytest.approx(max(given["backlog_s"][row], wait_s))
        assert timing.transfer_s == pytest.approx(exposed_s)
        assert timing.stall_s == pytest.approx(0.0 if route[row] else decoding * s)
        assert timing.work_s == pytest.approx(s + timing.transfer_s + timing.stall_s)
        assert (times.ready_s[row], times.work_s[row]) == pytest.approx((timing.ready_s, timing.work_s))
