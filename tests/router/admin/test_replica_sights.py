from collections.abc import Mapping

import pytest

from router.admin.replica_sights import ReplicaSights, counters
from router.shared import Vitals

VITALS = Vitals(
    version="1.2.3",
    started_unix_s=100.0,
    at_unix_s=200.0,
    cpu_s=10.0,
    inflight=3,
    holds_snapshot_lease=True,
    requests={
        "completed": 90,
        "worker_error": 2,
        "upstream_timeout": 3,
        "handover_failed": 1,
        "client_left": 4,
    },
    rejected=7,
    prompt_tokens=9999,
    reported_prompt_tokens=5000,
    cached_tokens=4000,
    ttft_bounds_s=(0.1, 1.0),
    ttft_counts=(5, 9, 12),
)


class Told:
    """Vitals that the test says."""

    def __init__(self, **known: Vitals | None) -> None:
        self.known: Mapping[str, Vitals | None] = known

    async def __call__(self) -> Mapping[str, Vitals | None]:
        return self.known


def test_what_workers_failed_is_told_from_what_clients_did() -> None:
    found = counters(VITALS)

    assert (found.requests, found.failed, found.rejected) == (100, 6, 7)


def test_the_hit_rate_counts_only_what_engines_report() -> None:
    assert (counters(VITALS).prompt_tokens, counters(VITALS).cached_tokens) == (5000, 4000)


def test_times_to_first_token_are_counted_between_bounds() -> None:
    assert counters(VITALS).ttft_counts == (5, 4, 3)
    assert counters(Vitals()).ttft_counts == ()


async def test_replicas_come_in_order_and_one_that_is_silent_has_no_figures() -> None:
    seen = await ReplicaSights(Told(b=None, a=VITALS)).look()

    assert [each.replica for each in seen] == ["a", "b"]
    assert seen[0].shown["writes_snapshots"]
    assert (seen[1].counters, seen[1].shown) == (None, {"known": False})


@pytest.mark.parametrize(
    ("later", "ratio"),
    [
        (Vitals(started_unix_s=100.0, at_unix_s=205.0, cpu_s=12.0), 0.4),
        (Vitals(started_unix_s=203.0, at_unix_s=205.0, cpu_s=1.0), None),
        (Vitals(started_unix_s=100.0, at_unix_s=200.0, cpu_s=10.0), None),
    ],
    ids=["since the look before", "another process", "said nothing new"],
)
async def test_how_busy_a_replica_is_follows_from_two_looks(later: Vitals, ratio: float | None) -> None:
    told = Told(a=VITALS)
    sights = ReplicaSights(told)
    assert (await sights.look())[0].shown["cpu_ratio"] is None

    told.known = {"a": later}
    assert (await sights.look())[0].shown["cpu_ratio"] == ratio
