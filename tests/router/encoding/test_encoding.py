"""Which encoder a part goes to, and who knows of it."""

import numpy as np
import pytest

from router.encoding import Encoding
from router.encoding.encoding import RANKS_MAX, REGISTRATION_BYTES_MAX, REGISTRATIONS_MAX
from router.errors import ClientError, NoWorker
from router.proxy import ClientRequest
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


def test_registrations_are_remembered_up_to_a_bound(stage: Bench) -> None:
    encoding = Encoding(stage.gateway)
    request = ClientRequest(b"POST", b"/scheduler_receive_url", b"", (), b"{}", "c", 0.0)
    for number in range(REGISTRATIONS_MAX + 1):
        encoding.registered(str(number), request)
    encoding.registered("1", request)

    assert encoding.registrations("0") == []
    assert encoding.registrations("1") == [request, request]
    encoding.forget("1")
    assert encoding.registrations("1") == []


def test_registrations_of_a_part_are_bounded_in_number_and_size(stage: Bench) -> None:
    encoding = Encoding(stage.gateway)
    small = ClientRequest(b"POST", b"/scheduler_receive_url", b"", (), b"{}", "c", 0.0)
    large = ClientRequest(
        b"POST", b"/scheduler_receive_url", b"", (), b"x" * (REGISTRATION_BYTES_MAX + 1), "c", 0.0
    )
    for _ in range(RANKS_MAX):
        encoding.registered("p", small)

    with pytest.raises(ClientError) as too_many:
        encoding.registered("p", small)
    with pytest.raises(ClientError) as too_large:
        encoding.registered("q", large)

    assert (too_many.value.code, too_large.value.code) == ("too_many_registrations", "body_too_large")
    assert len(encoding.registrations("p")) == RANKS_MAX
    assert encoding.registrations("q") == []
