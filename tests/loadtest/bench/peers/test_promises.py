"""Promises are judged by the medians of the same run."""

from dataclasses import replace

import pytest
from fakes.measured import ONE, RUN, measured

from loadtest.bench.peers.promises import PROMISES, Verdict, judge
from loadtest.bench.peers.results import Results


def w1(results: Results) -> Verdict:
    """The promise beside the cache-aware routers."""
    return next(verdict for verdict in judge(results) if verdict.promise == PROMISES[0])


@pytest.mark.parametrize(("ours_us", "kept"), [(100.0, True), (100.1, False)])
def test_the_limit_is_the_cheapest_cache_aware_router(ours_us: float, kept: bool) -> None:
    """The round robin router at 10 us is not one of them."""
    verdict = w1(measured(cacheway=ours_us, sglang_ca=300, smg_ca=100, vllm_ca=200, sglang_rr=10))

    assert (verdict.rival, verdict.limit, verdict.kept) == ("smg-ca", 100.0, kept)
    assert verdict.ratio == pytest.approx(ours_us / 100)


def test_every_promise_is_judged_where_everything_was_measured() -> None:
    assert [verdict.promise for verdict in judge(measured())] == list(PROMISES)


def test_added_latency_has_limits_of_its_own_for_median_and_tail() -> None:
    """3.0 less 2.5 and 9.0 less 5.0 ms, with limits of 0.6 and 3 ms."""
    seen = {
        verdict.limit: (verdict.seen.median, verdict.rival, verdict.kept)
        for verdict in judge(measured())
        if verdict.promise.workload == "W6"
    }

    assert seen == {0.6: (0.5, None, True), 3.0: (4.0, None, False)}


def test_the_limit_in_memory_is_the_smallest_of_all_rust_routers() -> None:
    ours = [replace(ONE, workload="W7fill", rss_mib=60.0)]
    others = [
        replace(ONE, peer=peer, workload="W7fill", rss_mib=rss_mib)
        for peer, rss_mib in (("nginx", 5.0), ("smg-rr", 55.0), ("smg-ca", 300.0))
    ]

    (verdict,) = judge(Results(RUN, [*ours, *others]))

    assert (verdict.rival, verdict.limit, verdict.kept) == ("smg-rr", 55.0, False)


def test_no_promise_is_kept_by_failing() -> None:
    broken = replace(ONE, round_number=1, failed=1)
    rival = replace(ONE, peer="smg-ca", cpu_us_per_request=1000.0)

    assert w1(Results(RUN, [ONE, rival])).kept
    assert not w1(Results(RUN, [ONE, broken, rival])).kept


def test_a_fill_that_failed_once_breaks_the_promise_about_memory() -> None:
    fill = replace(ONE, workload="W7fill")
    rival = replace(fill, peer="smg-ca", rss_mib=300.0)

    (verdict,) = judge(Results(RUN, [fill, replace(fill, round_number=1, failed=4), rival]))

    assert (verdict.failed, verdict.kept) == (4, False)


def test_without_a_rival_or_without_us_nothing_is_judged() -> None:
    assert judge(Results(RUN, [ONE])) == []
    assert judge(Results(RUN, [replace(ONE, peer="smg-ca")])) == []
