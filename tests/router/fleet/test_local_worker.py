"""What a replica knows of one worker, in words."""

from dataclasses import replace
from typing import cast

import pytest
from fakes.gateway import FakePool

from policies import Worker
from router.fleet import Health, LocalWorker, ServedModel
from router.proxy import WorkerPool


def local(*, draining: bool = False) -> LocalWorker:
    worker = Worker("a:80", 0, "http://a:80", draining=draining)
    return LocalWorker(worker, cast(WorkerPool, FakePool("http://a:80")), None)


@pytest.mark.parametrize("health", Health)
def test_drain_is_shown_before_health(health: Health) -> None:
    one, drained = local(), local(draining=True)
    one.health = drained.health = health
    assert (one.state, drained.state) == (health.value, "draining")


def test_a_worker_that_has_not_said_may_serve_any_model() -> None:
    one = local()
    assert one.serves("m")
    one.models = (ServedModel("m"),)
    assert (one.serves("m"), one.serves("n"), one.serves(None)) == (True, False, True)


# How it hands over.


def test_a_label_says_the_protocol_before_the_engine_does() -> None:
    one = local()
    assert (one.site, one.protocol) == ("", "")
    one.engine = "sglang"
    assert one.protocol == "sglang"
    one.engine = "vllm"
    assert one.protocol == "nixl"
    one.worker = replace(one.worker, site="far", labels={"handover": "mooncake"})
    assert (one.site, one.protocol) == ("far", "mooncake")
    one.worker = replace(one.worker, labels={"handover": "carrier pigeon"})
    assert one.protocol == "nixl"


def test_decode_workers_come_where_labels_say_then_the_engine_then_its_default() -> None:
    one = local()
    assert one.bootstrap == ("a", 8998)
    one.advertised_port = 9100
    assert one.bootstrap == ("a", 9100)
    one.worker = replace(one.worker, labels={"bootstrap_port": "9200", "bootstrap_host": "10.0.0.7"})
    assert one.bootstrap == ("10.0.0.7", 9200)
    for port in ("any", "0", "70000"):
        one.worker = replace(one.worker, url="http://[::1]:80", labels={"bootstrap_port": port})
        assert one.bootstrap == ("::1", 9100)
