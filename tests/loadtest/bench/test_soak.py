"""Tests of `loadtest.bench.soak`."""

import pytest

from loadtest.bench.gateway_stage import Sample
from loadtest.bench.http_load import LoadReport
from loadtest.bench.soak import verdict


def samples(growth_mb_per_min: float) -> list[Sample]:
    """Half an hour that begins with five minutes of warming up, by 40 MB."""
    return [
        Sample(
            at_s,
            0.1 * at_s,
            0.0,
            (round(1e6 * (100 + min(at_s / 300, 1) * 40 + growth_mb_per_min * at_s / 60)),),
        )
        for at_s in range(0, 1800, 5)
    ]


@pytest.mark.parametrize(("growth_mb_per_min", "flat"), [(0.0, True), (0.1, True), (3.0, False)])
def test_growth_after_the_warm_up_fails(growth_mb_per_min: float, flat: bool) -> None:
    text, is_flat = verdict(samples(growth_mb_per_min), LoadReport(1800.0, 0, 180_000, 0, 0, 0, {}))
    assert is_flat == flat
    assert "180,000 streams in 1795 s, 0 broken, 10.0% of a core" in text
    assert f"slope  {1000 * growth_mb_per_min:+.1f} KB/min" in text
