"""A short calm run is seen from all sides."""

import pytest

from loadtest.chaos import PrefillDecodePlan, run_prefill_decode


@pytest.mark.slow
async def test_a_run_sees_clients_workers_and_the_link() -> None:
    run = await run_prefill_decode(
        PrefillDecodePlan(seconds=5.0, rate_per_s=4.0, disaster=False, protocol="nixl")
    )
    assert len(run.served) == run.sent > 0
    assert set(run.prefilled) <= {"p1", "p2", "far1", "far2"}
    assert 0 <= run.cached_tokens < run.prompt_tokens
    assert run.link["under_way"] == 0
    assert run.offload["enabled"]
    assert run.metrics["cacheway_inflight_requests"] == 0
    assert (run.dead, run.kills, run.link_faults, run.left, run.errors) == ("", [], [], [], [])
