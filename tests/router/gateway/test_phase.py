"""The states of a request: what the drawing in `router.gateway.phase` promises."""

import pytest

from router.gateway.phase import NEXT, Phase


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(NEXT) == set(Phase)
    reached, new = {Phase.READING}, {Phase.READING}
    while new:
        new = {after for phase in new for after in NEXT[phase].values()} - reached
        reached |= new
    assert reached == set(Phase)


@pytest.mark.parametrize("phase", Phase)
def test_every_request_can_end_once(phase: Phase) -> None:
    assert NEXT[phase].get(Phase.DONE) == (None if phase is Phase.DONE else Phase.DONE)


def test_an_answer_begins_at_a_worker_only_and_is_sent_nowhere_else() -> None:
    assert [phase for phase in Phase if Phase.ANSWERING in NEXT[phase]] == [Phase.SENT]
    # Between only for a stream that another worker continues (`router.continuing`).
    assert set(NEXT[Phase.ANSWERING]) == {Phase.BETWEEN, Phase.DONE}


def test_a_way_that_is_not_drawn_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        NEXT[Phase.DONE][Phase.SENT]
