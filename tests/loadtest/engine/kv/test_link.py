"""A link serves transfers one after the other."""

from loadtest.engine.kv.link import Link


def test_transfers_that_overlap_share_the_rate() -> None:
    """Two transfers of 100 bytes at 100 bytes/s that begin together are both done after two seconds."""
    link = Link(100.0)

    assert link.send(100, 5.0) == 6.0
    assert link.send(100, 5.0) == 7.0
    assert link.send(100, 9.0) == 10.0
    assert link.moved_bytes == 300


def test_an_empty_transfer_waits_for_nobody() -> None:
    link = Link(100.0)
    link.send(1000, 0.0)

    assert link.send(0, 1.0) == 1.0


def test_what_a_stopped_transfer_did_not_send_is_free_for_the_next() -> None:
    link = Link(100.0)
    link.send(1000, 0.0)
    link.give_back(700, 3.0)

    assert link.send(100, 3.0) == 4.0
    assert link.moved_bytes == 400


def test_a_link_is_never_free_before_now() -> None:
    link = Link(100.0)
    link.send(100, 0.0)
    link.give_back(100, 2.0)

    assert link.send(100, 2.0) == 3.0
