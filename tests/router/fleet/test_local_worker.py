"""A replica's knowledge of one worker, in words."""

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


# The hand-over.


def test_site_and_protocol_come_from_labels_before_the_engine() -> None:
    one = local()
    assert (one.worker.site, one.protocol) == ("", "")
    one.engine = "sglang"
    assert one.protocol == "sglang"
    one.engine = "vllm"
    assert one.protocol == "nixl"
    one.worker = replace(one.worker, site="far", labels={"handover": "mooncake"})
    assert (one.worker.site, one.protocol) == ("far", "mooncake")
    one.worker = replace(one.worker, labels={"handover": "carrier pigeon"})
    assert one.protocol == "nixl"
