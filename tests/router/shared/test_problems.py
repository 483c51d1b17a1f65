"""Degraded while any loop has a reason; the listener hears every change and nothing twice."""

from router.shared.ports import NoListener
from router.shared.problems import Problems


class Heard(NoListener):
    def __init__(self) -> None:
        self.reasons: list[str | None] = []

    def degraded(self, reason: str | None) -> None:
        self.reasons.append(reason)


def test_it_is_degraded_until_the_last_reason_is_gone() -> None:
    heard = Heard()
    problems = Problems(heard)
    problems.set("flush", "out of memory")
    problems.set("heartbeat", "out of memory too")
    problems.clear("flush")
    assert str(problems.reason) == "out of memory too"
    problems.clear("heartbeat")
    assert problems.reason is None
    assert heard.reasons == ["out of memory", "out of memory too", None]


def test_saying_the_same_again_is_no_news() -> None:
    heard = Heard()
    problems = Problems(heard)
    problems.set("flush", "no")
    problems.set("flush", "no")
    problems.clear("read")
    assert heard.reasons == ["no"]


def test_that_answers_are_late_hides_no_other_reason() -> None:
    """On a busy machine they are late before Redis is lost, and none comes afterwards that could end it."""
    heard = Heard()
    problems = Problems(heard)
    problems.set("pace", "late")
    problems.set("connection", "NOAUTH")
    problems.set("flush", "out of memory")
    assert problems.reason == "NOAUTH"
    problems.clear("connection")
    problems.clear("flush")
    assert heard.reasons == ["late", "NOAUTH", "out of memory", "late"]
