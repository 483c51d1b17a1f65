from typing import Any

import pytest

from loadtest.engine.errors import RequestRefused
from loadtest.engine.handover.meeting import Meeting, meetings

ONE = {"bootstrap_host": "p0", "bootstrap_port": 9001, "bootstrap_room": 7}


def test_a_request_says_host_port_and_room() -> None:
    assert meetings(ONE, ["r"]) == [Meeting("p0", 9001, 7)]


def test_a_port_that_is_not_said_is_the_usual_one() -> None:
    assert meetings(ONE | {"bootstrap_port": None}, ["r"]) == [Meeting("p0", 8998, 7)]


def test_a_batch_says_each_for_each_prompt() -> None:
    body = {"bootstrap_host": ["p0", "p1"], "bootstrap_port": [1, None], "bootstrap_room": [2**62, 5]}

    assert meetings(body, ["r", "s"]) == [Meeting("p0", 1, 2**62), Meeting("p1", 8998, 5)]


def test_one_room_for_a_batch_is_numbered_on() -> None:
    assert [meeting.room for meeting in meetings(ONE, ["r", "s", "t"])] == [7, 8, 9]


@pytest.mark.parametrize("room", [None, "7", True, [7, "8"]])
def test_a_request_without_a_room_is_refused_as_sglang_does(room: Any) -> None:
    with pytest.raises(RequestRefused, match=r"without bootstrap room id. req.rid='r1'") as refused:
        meetings(ONE | {"bootstrap_room": room}, ["r1", "r2"])

    assert refused.value.status == 400


@pytest.mark.parametrize(
    "wrong",
    [
        {"bootstrap_room": [1, 2, 3]},
        {"bootstrap_host": ["p0"], "bootstrap_room": [1, 2]},
        {"bootstrap_host": None},
        {"bootstrap_port": "8998"},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(RequestRefused):
        meetings(ONE | wrong, ["r1", "r2"])
