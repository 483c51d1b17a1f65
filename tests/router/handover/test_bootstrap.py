import json

import pytest
from fakes.legs import FakePool

from policies import Worker
from router.fleet import LocalWorker
from router.handover.bootstrap import bootstrap_of


def at(url: str, **labels: str) -> LocalWorker:
    return LocalWorker(Worker("w", 0, url, labels=labels), FakePool(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "labels", "host", "port"),
    [
        ("http://prefill-3:30000", {}, "prefill-3", 8998),
        ("https://10.0.0.7/base", {"bootstrap_port": "9100"}, "10.0.0.7", 9100),
        ("http://[fd00::7]:30000", {}, "[fd00::7]", 8998),
        ("http://a:1", {"bootstrap_host": "fd00::8", "bootstrap_port": "1"}, "[fd00::8]", 1),
        ("http://a:1", {"bootstrap_host": 'o"dd', "bootstrap_port": "none"}, 'o"dd', 8998),
        ("http://a:1", {"bootstrap_port": "65536"}, "a", 8998),
    ],
)
def test_a_bootstrap_server_is_beside_its_worker_unless_labels_say_otherwise(
    url: str, labels: dict[str, str], host: str, port: int
) -> None:
    bootstrap = bootstrap_of(at(url, **labels))

    assert (bootstrap.host, bootstrap.port) == (host, port)
    assert json.loads(bootstrap.host_json) == host


def test_a_port_that_the_engine_tells_counts_unless_a_label_says_otherwise() -> None:
    told, labelled = at("http://a:1"), at("http://a:1", bootstrap_port="9100")
    told.advertised_port = labelled.advertised_port = 8999

    assert (bootstrap_of(told).port, bootstrap_of(labelled).port) == (8999, 9100)
