"""The throughput model against one written plainly, and the promises of its optimum."""

from collections.abc import Sequence
from math import inf, isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.disaggregation.optimum import (
    Curve,
    Optimum,
    RemoteSite,
    Split,
    Stage,
    Stages,
    ThroughputModel,
    UncachedLengths,
    WorkerClass,
    service_curve,
)
from policies.estimates.costs import Floats, ServiceModel

SLOW, FAST = ServiceModel(0.6, 1e-4, 100_000.0), ServiceModel(0.4, 4e-5, 195_000.0)


def curve(model: ServiceModel) -> Curve:
    return service_curve(model, np.array([1.0]), np.array([0.0]))


def kv_bytes(tokens: Floats) -> Floats:
    return 180e6 + 17_000.0 * tokens


def histogram(requests: Sequence[float]) -> UncachedLengths:
    """Bins of an octave each from 512 tokens on, one for each number."""
    bounds = np.array([512.0 * 2.0**octave for octave in range(len(requests))])
    return UncachedLengths(0.75 * bounds, np.array(requests, dtype=np.float64), bounds)


def stages(
    prefill: int = 0, decode: int = 0, convertible: int = 8, remote: int = 4, bytes_per_s: float = inf
) -> Stages:
    home = WorkerClass(curve(SLOW), 0.8, prefill, decode, convertible)
    return Stages([home], [RemoteSite([(remote, curve(FAST))], bytes_per_s)], kv_bytes)


MIXED = histogram([5, 9, 20, 30, 25, 8, 3])


def naive(lengths: UncachedLengths, fleet: Stages, t: float, split: Split, *, of_times: bool) -> float:
    """Equations (3) to (6), one request class at a time."""
    table = list(
        zip(lengths.tokens.tolist(), lengths.requests.tolist(), lengths.bounds.tolist(), strict=True)
    )
    long = [(tokens, n) for tokens, n, bound in table if bound > t and n]
    short = [(tokens, n) for tokens, n, bound in table if bound <= t and n]

    def mean(part: list[tuple[float, float]], of: Curve) -> float:
        total = sum(n for _, n in part)
        if of_times:
            return sum(n * float(of(np.array([tokens]))[0]) for tokens, n in part) / total
        return float(of(np.array([sum(n * tokens for tokens, n in part) / total]))[0])

    p = sum(n for _, n in long) / lengths.requests.sum()
    bounds = [sum(n * one.decode_per_s for n, one in zip(split.decode, fleet.home, strict=True))]
    if long:
        remote = 0.0
        for site in fleet.remote:
            busy = sum(n / mean(long, each) for n, each in site.workers)
            remote += min(busy, site.bytes_per_s / mean(long, fleet.kv_bytes))
        bounds.append(remote / p)
    if short:
        here = sum(n / mean(short, one.prefill_s) for n, one in zip(split.prefill, fleet.home, strict=True))
        bounds.append(here / (1 - p))
    return min(bounds)


def every_choice(model: ThroughputModel) -> list[tuple[float, Split]]:
    return [(t, split) for t in model.thresholds.tolist() for split in model.splits()]


COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)


@given(
    COUNTS,
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from([0.0, 1e8, 1e9, inf]),
    st.booleans(),
)
def test_the_best_is_the_best_of_all_by_the_paper_s_equations(
    requests: list[float],
    prefill: int,
    decode: int,
    convertible: int,
    remote: int,
    bytes_per_s: float,
    of_times: bool,
) -> None:
    lengths, fleet = histogram(requests), stages(prefill, decode, convertible, remote, bytes_per_s)
    model = ThroughputModel(lengths, fleet, mean_of_times=of_times)
    best = model.best()
    found = naive(lengths, fleet, best.throughput.threshold_tokens, best.split, of_times=of_times)
    assert isclose(best.throughput.requests_per_s, found, rel_tol=1e-6)
    for t, split in every_choice(model):
        expected = naive(lengths, fleet, t, split, of_times=of_times)
        assert isclose(model.at(t, split).requests_per_s, expected, rel_tol=1e-6)
        assert expected <= found * (1 + 1e-6)


def test_several_classes_and_sites_add_up() -> None:
    """Two sites behind links of their own, and two classes at home of which only one is convertible."""
    home = [WorkerClass(curve(SLOW), 0.8, convertible=4), WorkerClass(curve(FAST), 0.5, prefill=1, decode=2)]
    remote = [RemoteSite([(2, curve(FAST)), (1, curve(SLOW))], 2e8), RemoteSite([(3, curve(FAST))])]
    fleet = Stages(home, remote, kv_bytes)
    model = ThroughputModel(MIXED, fleet)
    for t, split in every_choice(model):
        expected = naive(MIXED, fleet, t, split, of_times=True)
        assert isclose(model.at(t, split).requests_per_s, expected, rel_tol=1e-6)
    assert {split.prefill[1] for split in model.splits()} == {1}


def test_who_gives_up_least_decoding_prefills_first() -> None:
    """The second class prefills three times as fast and decodes hardly better."""
    home = [WorkerClass(curve(SLOW), 0.8, convertible=2), WorkerClass(curve(FAST), 0.9, convertible=2)]
    model = ThroughputModel(MIXED, Stages(home))
    assert [split.prefill for split in model.splits()] == [(0, 1), (0, 2), (1, 2)]


def test_at_the_optimum_both_prefill_stages_and_decode_saturate_about_together() -> None:
    """(7) and (8), as nearly as bins of 1/20 octave and 40 workers allow."""
    bounds = 512.0 * 2.0 ** (np.arange(160) / 20)
    lengths = UncachedLengths(0.98 * bounds, np.ones(160), bounds)
    best = ThroughputModel(lengths, stages(convertible=40, remote=12)).best().throughput
    assert best.remote_per_s / best.remote_ratio == pytest.approx(
        best.prefill_per_s / (1 - best.remote_ratio), rel=0.05
    )
    assert best.remote_per_s + best.prefill_per_s == pytest.approx(best.decode_per_s, rel=0.05)
    assert 0 < best.short_tokens < best.threshold_tokens < best.long_tokens


def test_without_remote_workers_nothing_is_remote() -> None:
    for fleet in (stages(remote=0), Stages(stages().home), stages(bytes_per_s=0.0)):
        best = ThroughputModel(MIXED, fleet).best().throughput
        assert (best.threshold_tokens, best.remote_ratio, best.egress_bytes_per_s) == (inf, 0.0, 0.0)
        assert best.requests_per_s > 0


def test_without_prefill_workers_at_home_everything_is_remote() -> None:
    best = ThroughputModel(MIXED, stages(decode=8, convertible=0, remote=1)).best().throughput
    assert (best.threshold_tokens, best.remote_ratio, best.bound) == (0.0, 1.0, Stage.REMOTE)


def test_a_narrow_link_raises_the_threshold_and_is_never_asked_for_more_than_it_carries() -> None:
    wide = ThroughputModel(MIXED, stages()).best().throughput
    narrow = ThroughputModel(MIXED, stages(bytes_per_s=5e8)).best().throughput
    assert narrow.threshold_tokens > wide.threshold_tokens
    assert narrow.egress_bytes_per_s <= 5e8 * (1 + 1e-9) < wide.egress_bytes_per_s
    (split,) = [each for each in ThroughputModel(MIXED, stages()).splits() if each.prefill == (4,)]
    assert ThroughputModel(MIXED, stages(bytes_per_s=1e8)).at(0.0, split).bound is Stage.LINK


def test_where_decode_is_the_bottleneck_the_threshold_is_where_prefill_saturates_last() -> None:
    """Many thresholds serve the capacity of one decode worker; (7) holds among them."""
    model = ThroughputModel(MIXED, stages(prefill=4, decode=1, convertible=0))
    best = model.best().throughput
    assert best.bound is Stage.DECODE

    def spare(t: float) -> float:
        one = model.at(t, model.splits()[0])
        parts = [(one.remote_per_s, one.remote_ratio), (one.prefill_per_s, 1 - one.remote_ratio)]
        return min(per_s / share for per_s, share in parts if share > 1e-12)

    assert spare(best.threshold_tokens) == pytest.approx(max(map(spare, model.thresholds.tolist())))


def test_no_stage_is_left_without_workers_unless_there_are_too_few() -> None:
    model = ThroughputModel(MIXED, stages(convertible=8))
    sizes = [(split.prefill_workers, split.decode_workers) for split in model.splits()]
    assert sizes == [(n, 8 - n) for n in range(1, 8)]
    lonely = ThroughputModel(MIXED, stages(convertible=1))
    assert len(lonely.splits()) == 2
    assert isinstance(lonely.best(), Optimum)


def test_a_threshold_within_a_bin_counts_as_the_bin_s_lower_bound() -> None:
    model = ThroughputModel(MIXED, stages())
    split = model.splits()[0]
    assert model.at(3000.0, split) == model.at(2048.0, split)
    assert model.at(2048.0, split) != model.at(4096.0, split)
