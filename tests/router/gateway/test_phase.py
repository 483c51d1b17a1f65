"""The states of a request: what the drawing in `router.gateway.phase` promises."""

import pytest

from router.gateway.phase import NEXT, NEXT_OF_PAIR, PairPhase, PairStep, Phase, Step


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(NEXT) == set(Phase)
    reached, new = {Phase.READING}, {Phase.READING}
    while new:
        new = {after for phase in new for after in NEXT[phase].values()} - reached
        reached |= new
    assert reached == set(Phase)


@pytest.mark.parametrize("phase", Phase)
def test_every_request_can_end_once(phase: Phase) -> None:
    assert NEXT[phase].get(Step.END) == (None if phase is Phase.DONE else Phase.DONE)


def test_an_answer_begins_at_a_worker_only_and_is_sent_nowhere_else() -> None:
    assert [phase for phase in Phase if Step.ANSWER in NEXT[phase]] == [Phase.SENT]
    assert set(NEXT[Phase.ANSWERING]) == {Step.END}


def test_a_step_that_a_state_does_not_know_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        NEXT[Phase.DONE][Step.SEND]


def test_a_pair_goes_one_way_and_may_be_released_from_anywhere() -> None:
    course = [PairPhase.UNMADE]
    for step in PairStep:
        course.append(NEXT_OF_PAIR[course[-1]][step])
    assert course == list(PairPhase)
    releasable = [phase for phase in PairPhase if PairStep.RELEASE in NEXT_OF_PAIR[phase]]
    assert releasable == [PairPhase.PREFILLING, PairPhase.SHIPPING, PairPhase.DECODING]
