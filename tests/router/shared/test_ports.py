"""The silent listener satisfies the port."""

from router.shared import NoListener, SharedListener


def test_the_silent_listener_hears_everything_and_does_nothing() -> None:
    listener: SharedListener = NoListener()
    listener.flushed(1, 2, 0.1)
    listener.applied(1, 0.1)
    listener.skipped(1, "failed")
    listener.dropped(1)
    listener.degraded(None)
    listener.gap()
    listener.snapshot_written(1, 0.1)
    listener.snapshot_read(1, 0.1)
    listener.snapshot_refused("damaged")
    listener.replica_left("a")
