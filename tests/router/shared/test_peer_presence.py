"""A replica is alone without heartbeats and operations of others for a while; among many, all take time."""

from collections.abc import Callable

import pytest
from fakes.virtual_loop import VirtualLoop, run_virtually

from router.shared.peer_presence import HEARD_S, LEISURE_S, LONE_FLUSH_S, SIBLING_S, PeerPresence


class Clock:
    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def test_a_replica_is_alone_from_the_start_until_a_heartbeat_and_again_after_its_end() -> None:
    beats: set[str] = set()
    presence = PeerPresence(lambda: len(beats), Clock())
    assert presence.alone
    beats.add("sibling")
    assert not presence.alone
    assert presence.pause_s(0.003) == 0.003
    beats.clear()
    assert presence.alone


def test_after_an_entry_of_another_replica_it_is_in_company_for_as_long_as_its_heartbeat_takes() -> None:
    clock = Clock()
    presence = PeerPresence(lambda: 0, clock)
    presence.heard()
    clock.s += HEARD_S - 0.01
    assert not presence.alone
    clock.s += 0.02
    assert presence.alone


def test_a_pause_that_is_longer_anyway_stays_as_configured() -> None:
    assert PeerPresence(lambda: 0, Clock()).pause_s(0.2) == 0.2


def test_among_many_replicas_pauses_grow_so_that_all_together_write_no_more() -> None:
    """Eight replicas pause as long as two, fifty for 42 ms, a thousand no longer than one alone."""
    assert PeerPresence(lambda: 7, Clock()).pause_s(0.003) == 0.003
    assert PeerPresence(lambda: 49, Clock()).pause_s(0.003) == 42 * SIBLING_S
    assert PeerPresence(lambda: 999, Clock()).pause_s(0.003) == LEISURE_S


@pytest.mark.parametrize("meet", [PeerPresence.heard, PeerPresence.seen])
def test_a_lone_publisher_rests_until_another_replica_appears(meet: Callable[[PeerPresence], None]) -> None:
    async def main(loop: VirtualLoop) -> None:
        presence = PeerPresence(lambda: 0, loop.time)
        await presence.rest(0.003)
        assert loop.time() == pytest.approx(LONE_FLUSH_S)
        loop.call_later(0.05, meet, presence)
        await presence.rest(0.003)
        assert loop.time() == pytest.approx(LONE_FLUSH_S + 0.05)

    run_virtually(main)


def test_in_company_a_publisher_rests_as_configured() -> None:
    async def main(loop: VirtualLoop) -> None:
        presence = PeerPresence(lambda: 1, loop.time)
        presence.seen()
        await presence.rest(0.003)
        assert loop.time() == pytest.approx(0.003)

    run_virtually(main)
