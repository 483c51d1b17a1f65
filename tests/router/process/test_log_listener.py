"""What goes through the log is counted, and news wake those who wait."""

from router.process.log_listener import LogListener


def test_only_what_others_said_is_news() -> None:
    news: list[int] = []
    listener = LogListener(lambda: news.append(1))
    listener.flushed(3, 100, 0.1)
    listener.snapshot_refused("damaged")
    assert news == []
    listener.applied(2, 0.1)
    listener.snapshot_merged()
    assert len(news) == 2
    assert (listener.published_ops, listener.applied_ops, listener.snapshots_refused) == (3, 2, 1)
