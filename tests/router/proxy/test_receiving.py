"""Bytes that come in on a connection: the promises of the drawing in `router.proxy.receiving`."""

import pytest

from router.proxy.receiving import NEXT_RECEIVING, Received, Receiving


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(NEXT_RECEIVING) == set(Receiving)
    reached, new = {Receiving.IDLE}, {Receiving.IDLE}
    while new:
        new = {after for state in new for after in NEXT_RECEIVING[state].values()} - reached
        reached |= new
    assert reached == set(Receiving)


@pytest.mark.parametrize("state", Receiving)
def test_anything_can_be_refused_and_nothing_follows(state: Receiving) -> None:
    assert NEXT_RECEIVING[state][Received.REFUSE] is Receiving.REFUSED
    assert set(NEXT_RECEIVING[Receiving.REFUSED]) == {Received.REFUSE}


def test_a_head_begins_only_where_the_last_request_is_complete() -> None:
    assert [state for state in Receiving if Received.BEGIN in NEXT_RECEIVING[state]] == [Receiving.IDLE]
