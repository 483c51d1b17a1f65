"""The price of sharing is the difference by the number of the others; their requests are real placements."""

from loadtest.bench.http_load import LoadReport
from loadtest.bench.serving import Window
from loadtest.bench.sharing import summary
from loadtest.bench.stage import Sample


def window(cpu_s: float) -> Window:
    """A thousand requests in ten seconds."""
    reports = [LoadReport(at_s, 0, completed, 0, 0, 0, {}) for at_s, completed in ((0.0, 0), (10.0, 1000))]
    return Window(Sample(0.0, 0.0, 0.0, (1,)), reports[0], Sample(10.0, cpu_s, 0.01, (1,)), reports[1])


def test_a_request_of_another_replica_costs_its_share_of_the_difference() -> None:
    """200 us alone and 270 us beside seven others: 10 us for each of their requests."""
    text = summary([window(0.19), window(0.2), window(0.24)], [window(0.27)], 8)
    assert "alone                   200.0 us a request (190.0 to 240.0), Valkey 10.0 us" in text
    assert "one of 8 replicas       270.0 us a request (270.0 to 270.0)" in text
    assert text.endswith("a request that another replica serves: 10.0 us")
