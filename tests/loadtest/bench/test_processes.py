"""Tests of `loadtest.bench.processes`."""

from loadtest.bench.gateway_stage import Sample
from loadtest.bench.http_load import LoadReport
from loadtest.bench.processes import Cost, summary


def look(at_s: float, cpu_s: float, valkey_cpu_s: float, completed: int) -> tuple[Sample, LoadReport]:
    return Sample(at_s, cpu_s, valkey_cpu_s, (1,)), LoadReport(at_s, 0, completed, 0, 0, 0, {})


def test_cost_is_told_per_request_of_the_window() -> None:
    cost = Cost.between(look(10.0, 3.0, 1.0, 1000), look(12.0, 3.5, 1.1, 2000), [3, 5])
    assert cost.requests_per_s == 500
    assert round(cost.cpu_us) == 500
    assert round(cost.valkey_us) == 100
    assert cost.clients == (3, 5)


def test_the_summary_compares_the_medians() -> None:
    def costs(*cpu_us: float) -> list[Cost]:
        return [Cost(100.0, figure, 5.0, (1,)) for figure in cpu_us]

    lines = summary({1: costs(90, 100, 500), 2: costs(105, 110, 115)}).splitlines()
    assert "10000 requests per CPU-second,  100.0 us each (90.0 to 500.0)" in lines[0]
    assert lines[-1] == "A request costs +10.0% with 2 processes."
    assert len(summary({1: costs(100)}).splitlines()) == 1
