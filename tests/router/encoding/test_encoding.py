"""Which encoder a part goes to, and who knows of it."""

from typing import cast

import numpy as np
import pytest

from policies import Placed
from router.encoding import Encoding
from router.encoding.encoding import WAITING_MAX
from router.encoding.exchange import EncoderExchange
from router.errors import NoWorker, RequestRejected
from router.fleet import LocalWorker
from tests.fakes.gateway import Bench

NOBODY = np.zeros(0, dtype=np.intp)


def added(bench: Bench, role: str, *names: str) -> None:
    """Add workers and find them healthy."""
    for name in names:
        worker_id = bench.registry.add(f"http://{name}:80", role=role)
        bench.registry.probed(bench.local(worker_id), ok=True, refused=False, detail="")


@pytest.fixture
def stage() -> Bench:
    bench = Bench(workers=0)
    added(bench, "encode", "e0", "e1", "e2")
    return bench


def test_an_encoder_that_failed_is_not_asked_again(stage: Bench) -> None:
    encoding = Encoding(stage.gateway)
    first = encoding.choose(7, NOBODY)
    second = encoding.choose(7, np.array([first.worker.slot]))

    assert encoding.choose(7, NOBODY) is first
    assert second is not first


def test_if_all_have_failed_one_is_asked_once_more(stage: Bench) -> None:
    encoding = Encoding(stage.gateway)
    assert encoding.choose(7, np.arange(8)) is encoding.choose(7, NOBODY)


def test_encoders_take_no_requests_and_others_no_media() -> None:
    stage = Bench(workers=0)
    added(stage, "plain", "p")
    with pytest.raises(NoWorker):
        Encoding(stage.gateway).choose(7, NOBODY)
    added(stage, "encode", "e")
    slots = stage.gateway.registry.eligible(None, stage.time.clock.now_us())
    assert [stage.gateway.registry.at_slot(slot).worker.role for slot in slots.tolist()] == ["plain"]


def test_a_part_that_has_ended_is_still_known_and_weighs_nothing(stage: Bench) -> None:
    """/send comes after /encode has answered."""
    encoding = Encoding(stage.gateway)
    local = encoding.choose(7, NOBODY)
    ended = encoding.place("p", 0, local)
    loads = stage.gateway.fleet.loads
    assert loads.inflight_requests[local.worker.slot] == 1
    ended()
    assert loads.inflight_requests[local.worker.slot] == 0
    assert encoding.whereabouts("p") is local
    assert encoding.whereabouts("q") is None


def test_the_latest_attempt_says_where_a_part_is(stage: Bench) -> None:
    encoding = Encoding(stage.gateway)
    first = encoding.choose(7, NOBODY)
    second = encoding.choose(7, np.array([first.worker.slot]))
    encoding.place("p", 0, first)()
    encoding.place("p", 1, second)
    assert encoding.whereabouts("p") is second


def test_without_encoders_nothing_is_kept_or_waited_for() -> None:
    stage = Bench(workers=0)
    added(stage, "plain", "p")
    with pytest.raises(NoWorker, match="role encode"):
        Encoding(stage.gateway).check()
    stage.registry.add("http://e:80", role="encode")
    Encoding(stage.gateway).check()  # it is not healthy yet, but will be


class Call:
    """A call that waits for its part."""

    def __init__(self) -> None:
        self.followed: list[LocalWorker] = []

    def follow(self, local: LocalWorker) -> None:
        self.followed.append(local)


def test_a_call_is_told_once_when_its_part_is_placed_here_or_elsewhere(stage: Bench) -> None:
    encoding = Encoding(stage.gateway)
    here, elsewhere, never, gone = calls = [Call() for _ in range(4)]
    for part, call in zip(("p", "q", "r", "p"), calls, strict=True):
        encoding.wait(part, cast(EncoderExchange, call))
    encoding.wait_no_more(cast(EncoderExchange, gone))
    local = encoding.choose(7, NOBODY)
    encoding.place("p", 0, local)
    stage.time.advance(0)
    now_us = stage.time.clock.now_us()
    stage.shared.publish(Placed("part-q-0", now_us, local.worker.worker_id, "r2", 0, 0, 0))
    encoding.heard()
    encoding.heard()
    assert [call.followed for call in (here, elsewhere, never, gone)] == [[local], [local], [], []]


def test_no_more_than_so_many_calls_wait(stage: Bench) -> None:
    encoding = Encoding(stage.gateway)
    calls = [Call() for _ in range(WAITING_MAX + 1)]
    for call in calls[1:]:
        encoding.wait("p", cast(EncoderExchange, call))
    with pytest.raises(RequestRejected):
        encoding.wait("p", cast(EncoderExchange, calls[0]))
    encoding.wait_no_more(cast(EncoderExchange, calls[1]))
    encoding.wait("p", cast(EncoderExchange, calls[0]))
