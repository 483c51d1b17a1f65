"""The log as its users see it."""

from fakes.gateway import FakeShared

from router.shared import LogPort, LogStatus


def test_the_siblings_are_those_of_now_and_known_without_the_status() -> None:
    def status() -> LogStatus:
        raise AssertionError("loops ask for each worker, and the whole status costs ten times more")

    replicas = ("r1",)
    port = LogPort("r1", FakeShared().publish, lambda: 0, status, lambda: replicas)
    assert port.replicas() == ("r1",)
    replicas = ("r1", "r2")
    assert port.replicas() == ("r1", "r2")
