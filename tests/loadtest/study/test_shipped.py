"""The queue of the study is that of the settings."""

from loadtest.study.shipped import TIMEOUT_S, K, shipped_queue
from router.settings import Settings


def test_the_queue_is_that_of_the_default_settings() -> None:
    settings, rules = Settings(), shipped_queue()

    assert rules.k == K == settings.queue.uncached_weight
    assert rules.room.timeout_s == TIMEOUT_S == settings.queue.timeout_s
    assert rules.room.size == settings.queue.size
    assert rules.admission == settings.admission


def test_the_order_may_be_another_one() -> None:
    assert shipped_queue(0.0).k == 0.0
    assert shipped_queue(0.0).room == shipped_queue().room
