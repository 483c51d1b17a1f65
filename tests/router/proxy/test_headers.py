from router.proxy import lines_of
from router.proxy.headers import ANSWER_HEADERS, may_pass, named_by

PASSES = {b"accept": True, b"cookie": False, b"traceparent": True}


def test_only_what_is_allowed_crosses_in_order() -> None:
    headers = [(b"accept", b"a"), (b"cookie", b"1"), (b"traceparent", b"t"), (b"accept", b"b")]

    assert lines_of(headers, PASSES) == b"accept: a\r\ntraceparent: t\r\naccept: b\r\n"
    assert lines_of([], PASSES) == b""


def test_a_header_that_connection_names_stays_behind() -> None:
    headers = [(b"accept", b"1"), (b"traceparent", b"2")]

    assert named_by(b"close, Accept") == {b"close", b"accept"}
    assert lines_of(headers, PASSES, named_by(b"Accept")) == b"traceparent: 2\r\n"


def test_a_usual_connection_header_names_nothing() -> None:
    assert not named_by(b"keep-alive")
    assert not named_by(b"close")
    assert not named_by(b"")


def test_no_setting_lets_a_worker_speak_for_the_gateway() -> None:
    assert all(map(may_pass, ANSWER_HEADERS))
    assert may_pass(b"x-engine")
    for name in (b"connection", b"content-length", b"x-request-id", b"x-cacheway-worker", b"x-ratelimit-x"):
        assert not may_pass(name)
