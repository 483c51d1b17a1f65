import pytest
from fakes.console import MadeUpFleet
from hypothesis import given
from hypothesis import strategies as st

from router.console import Conditions, Counters, RateWindow, ReplicaView
from router.console.rate_window import SAMPLES_MAX, gain, merged, quantile_s

BOUNDS_S = (0.1, 1.0)


class Told(MadeUpFleet):
    """Replicas whose totals the test says."""

    def __init__(self) -> None:
        super().__init__(2)
        self.totals: dict[str, Counters] = {}

    async def replicas(self) -> list[ReplicaView]:  # type: ignore[override]
        return [ReplicaView(name, counters, {}) for name, counters in self.totals.items()]


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


async def test_a_sample_is_the_difference_of_all_replicas_totals(clock: list[float]) -> None:
    fleet = Told()
    rates = RateWindow(fleet, now_unix_s=lambda: clock[0])
    fleet.totals = {"a": Counters(requests=100, prompt_tokens=10), "b": Counters(requests=7)}
    await rates.look()
    assert not rates.samples  # of one look nothing follows

    clock[0] += 5.0
    fleet.totals = {
        "a": Counters(150, 5, 10, 1010, 500, (0, 4, 0), BOUNDS_S),
        "b": Counters(57, 0, 0, 1000, 700, (0, 0, 0), BOUNDS_S),
    }
    await rates.look()

    sample = rates.samples[-1]
    assert sample.at_unix_s == 1005.0
    assert sample.requests_per_s == 20.0
    assert sample.hit_ratio == 0.6
    assert (sample.rejected_per_s, sample.failed_per_s) == (2.0, 1.0)
    assert sample.ttft_p50_s == 0.55


async def test_where_nothing_was_measured_there_is_no_figure(clock: list[float]) -> None:
    fleet = Told()
    rates = RateWindow(fleet, now_unix_s=lambda: clock[0])
    fleet.totals = {"a": Counters(requests=3)}
    for _ in range(2):
        await rates.look()
        clock[0] += 5.0

    sample = rates.samples[-1]
    assert (sample.requests_per_s, sample.hit_ratio, sample.ttft_p50_s, sample.ttft_p90_s) == (
        0.0,
        None,
        None,
        None,
    )


async def test_output_is_unknown_where_requests_ended_and_no_engine_reported_its_tokens(
    clock: list[float],
) -> None:
    fleet = Told()
    rates = RateWindow(fleet, now_unix_s=lambda: clock[0])
    for requests, tokens in ((1, 0), (6, 0), (11, 100), (11, 100)):
        fleet.totals = {"a": Counters(requests=requests, output_tokens=tokens)}
        await rates.look()
        clock[0] += 5.0
    assert [sample.output_tokens_per_s for sample in rates.samples] == [None, 20.0, 0.0]


async def test_a_replica_that_was_not_seen_before_counts_from_the_next_look(clock: list[float]) -> None:
    fleet = Told()
    rates = RateWindow(fleet, now_unix_s=lambda: clock[0])
    fleet.totals = {"a": Counters(requests=1)}
    await rates.look()
    clock[0] += 1.0
    fleet.totals = {"a": Counters(requests=2), "old": Counters(requests=1_000_000)}
    await rates.look()

    assert rates.samples[-1].requests_per_s == 1.0


async def test_ten_minutes_are_kept(clock: list[float]) -> None:
    rates = RateWindow(Told(), now_unix_s=lambda: clock[0])
    rates._fleet_view.totals = {"a": Counters()}  # type: ignore[attr-defined]
    for _ in range(SAMPLES_MAX + 30):
        await rates.look()
        clock[0] += 5.0

    assert len(rates.samples) == SAMPLES_MAX


async def test_what_is_wrong_knows_what_was_sent_away(clock: list[float]) -> None:
    fleet = Told()
    rates = RateWindow(fleet, now_unix_s=lambda: clock[0])
    fleet.totals = {"a": Counters()}
    await rates.look()
    clock[0] += 5.0
    fleet.totals = {"a": Counters(requests=10, rejected=10)}
    fleet.trouble = Conditions(redis="gone")
    await rates.look()

    assert [each["code"] for each in rates.wrong(fleet.facts())] == ["rejecting", "redis"]


def test_a_replica_that_began_again_counts_from_zero() -> None:
    before = Counters(1000, 0, 0, 10, 10, (5, 5, 5), BOUNDS_S)
    now = Counters(3, 0, 0, 2, 1, (1, 0, 0), BOUNDS_S)

    assert gain(before, now) == now


def test_histograms_with_other_bounds_are_left_out() -> None:
    ours, theirs, older = (BOUNDS_S, (1, 2, 3)), ((7.0,), (9,)), ((), ())

    assert merged([older, ours, theirs, ours]) == (BOUNDS_S, (2, 4, 6))
    assert merged([older, older]) == ((), ())


def test_a_quantile_is_interpolated_between_bounds() -> None:
    assert quantile_s(BOUNDS_S, (10, 10, 0), 0.5) == 0.1
    assert quantile_s(BOUNDS_S, (10, 10, 0), 0.75) == 0.55
    assert quantile_s(BOUNDS_S, (0, 0, 3), 0.5) == 1.0
    assert quantile_s(BOUNDS_S, (0, 0, 0), 0.5) is None


@given(st.lists(st.integers(0, 50), min_size=3, max_size=3), st.floats(0.01, 0.99))
def test_a_quantile_lies_within_the_bounds_and_rises_with_its_share(counts: list[int], share: float) -> None:
    low, high = quantile_s(BOUNDS_S, counts, share * 0.5), quantile_s(BOUNDS_S, counts, share)
    if sum(counts) == 0:
        assert high is None
        return
    assert low is not None
    assert high is not None
    assert 0.0 <= low <= high <= BOUNDS_S[-1]


async def test_errors_are_averaged_over_a_minute_so_that_one_of_them_is_one(clock: list[float]) -> None:
    """One failed request in five seconds is no rate of twelve a minute, and its row stays for a minute."""
    fleet, seen = Told(), []
    rates = RateWindow(fleet, now_unix_s=lambda: clock[0])
    failed = 0
    for look in range(30):
        failed += look == 14
        fleet.totals = {"a": Counters(requests=10 * look, failed=failed)}
        await rates.look()
        seen.append([each["what"] for each in rates.wrong(fleet.facts())])
        clock[0] += 5.0

    assert seen[13] == seen[26] == []
    assert seen[14:26] == 12 * [["1 request failed on workers in the last minute."]]


async def test_a_fleet_that_refuses_most_requests_is_told_of_but_not_after_a_few(clock: list[float]) -> None:
    fleet = Told()
    rates = RateWindow(fleet, now_unix_s=lambda: clock[0])
    for requests, refused in ((0, 0), (6, 6)):
        fleet.totals = {"a": Counters(requests=requests, refused=refused)}
        await rates.look()
        clock[0] += 5.0
    assert rates.wrong(fleet.facts()) == []

    fleet.totals = {"a": Counters(requests=30, refused=18)}
    await rates.look()
    assert rates.samples[-1].refused_per_s == 2.4
    assert [each["code"] for each in rates.wrong(fleet.facts())] == ["refusing"]
