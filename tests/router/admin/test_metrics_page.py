"""Metrics of many workers as one page."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.admin import metrics_page
from router.admin.metrics_page import MetricsPage

PAGE = b"""# HELP e:latency Seconds.
# TYPE e:latency histogram
e:latency_bucket{le="1.0"} 3
e:latency_bucket{le="+Inf"} 4
e:latency_sum 5.5
e:latency_count 4
# HELP e:tokens_total Tokens.
# TYPE e:tokens_total counter
e:tokens_total 7
no metric at all
"""


def test_a_page_of_two_workers_is_what_a_scraper_reads() -> None:
    page = MetricsPage()
    page.add("http://a:1", PAGE)
    page.add('http://"b":2', PAGE)
    families = {family.name: family for family in text_string_to_metric_families(page.text())}
    assert families.keys() == {"e:latency", "e:tokens"}
    samples = families["e:latency"].samples
    assert [sample.labels["worker_addr"] for sample in samples].count("http://a:1") == 4
    assert {sample.labels["worker_addr"] for sample in families["e:tokens"].samples} == {
        "http://a:1",
        'http://"b":2',
    }


def test_a_page_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "TOTAL_BYTES_MAX", len(PAGE))
    monkeypatch.setattr(metrics_page, "FAMILIES_MAX", 1)
    page = MetricsPage()
    page.add("http://a:1", PAGE)
    page.add("http://b:1", PAGE)
    assert "tokens" not in page.text()
    assert "1 workers left out" in page.text()
