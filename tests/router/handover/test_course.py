"""The course of a request with two legs: what the drawing in `router.handover.course` promises."""

import pytest

from router.handover.course import NEXT_COURSE, Course


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(NEXT_COURSE) == set(Course)
    reached, new = {Course.SENT}, {Course.SENT}
    while new:
        new = {after for course in new for after in NEXT_COURSE[course].values()} - reached
        reached |= new
    assert reached == set(Course)


@pytest.mark.parametrize("course", Course)
def test_it_can_end_at_any_time_and_nothing_follows(course: Course) -> None:
    assert NEXT_COURSE[course][Course.OVER] is Course.OVER
    assert set(NEXT_COURSE[Course.OVER]) == {Course.OVER}


def test_once_the_sink_has_heard_something_the_course_can_only_end() -> None:
    heard = [course for course in Course if set(NEXT_COURSE[course]) == {Course.OVER}]
    assert heard == [course for course in Course if course >= Course.ANSWERING]


def test_an_answer_begins_when_the_kv_is_there_only() -> None:
    assert [course for course in Course if Course.ANSWERING in NEXT_COURSE[course]] == [Course.SHIPPED]
