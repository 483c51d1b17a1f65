"""The log as its users see it."""

from dataclasses import replace

from fakes.gateway import ALONE_STATUS, FakeShared

from router.shared import LogPort


def test_the_siblings_are_those_of_now() -> None:
    status = ALONE_STATUS
    port = LogPort("r1", FakeShared().publish, lambda: 0, lambda: status)
    assert port.replicas() == ("r1",)
    status = replace(ALONE_STATUS, replicas=("r1", "r2"))
    assert port.replicas() == ("r1", "r2")
