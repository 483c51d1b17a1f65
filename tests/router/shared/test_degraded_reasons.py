"""Degraded while any loop has a reason; the listener hears every change and nothing twice."""

from router.shared.degraded_reasons import DegradedReasons
from router.shared.ports import NoListener


class Heard(NoListener):
    def __init__(self) -> None:
        self.reasons: list[str | None] = []

    def degraded(self, reason: str | None) -> None:
        self.reasons.append(reason)


def test_it_is_degraded_until_the_last_reason_is_gone() -> None:
    heard = Heard()
    degraded_reasons = DegradedReasons(heard)
    degraded_reasons.set("flush", "out of memory")
    degraded_reasons.set("heartbeat", "out of memory too")
    degraded_reasons.clear("flush")
    assert str(degraded_reasons.reason) == "out of memory too"
    degraded_reasons.clear("heartbeat")
    assert degraded_reasons.reason is None
    assert heard.reasons == ["out of memory", "out of memory too", None]


def test_saying_the_same_again_is_no_news() -> None:
    heard = Heard()
    degraded_reasons = DegradedReasons(heard)
    degraded_reasons.set("flush", "no")
    degraded_reasons.set("flush", "no")
    degraded_reasons.clear("read")
    assert heard.reasons == ["no"]


def test_that_answers_are_late_hides_no_other_reason() -> None:
    """On a busy machine they are late before Redis is lost, and none comes afterwards that could end it."""
    heard = Heard()
    degraded_reasons = DegradedReasons(heard)
    degraded_reasons.set("pace", "late")
    degraded_reasons.set("connection", "NOAUTH")
    degraded_reasons.set("flush", "out of memory")
    assert degraded_reasons.reason == "NOAUTH"
    degraded_reasons.clear("connection")
    degraded_reasons.clear("flush")
    assert heard.reasons == ["late", "NOAUTH", "out of memory", "late"]
