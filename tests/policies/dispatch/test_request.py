"""Facts of a request are the same from every source, and a request to decide knows its lane."""

from typing import Any

import msgspec
import numpy as np
import pytest

from policies import FULL_ATTENTION, BareRequest, DecisionInput, LengthClass, RequestFacts
from router.gateway.parsing import ParsedRequest


def test_parsed_and_bare_requests_have_the_facts() -> None:
    facts = {name for name, value in vars(RequestFacts).items() if isinstance(value, property)}

    assert {field.name for field in msgspec.structs.fields(BareRequest)} == facts
    assert facts <= {field.name for field in msgspec.structs.fields(ParsedRequest)}


def asked(**place: Any) -> DecisionInput:
    text = BareRequest("m", (b"",), 4, 1, 1)
    return DecisionInput(text, FULL_ATTENTION, np.arange(1), 1, 0.0, **place)


@pytest.mark.parametrize(
    ("place", "lane"),
    [
        ({}, "m|"),
        ({"length": LengthClass(2)}, "m|2"),
        ({"way": ""}, "m|@"),
        ({"way": "far>here"}, "m|@far>here"),
    ],
)
def test_the_lane_is_that_of_the_model_the_length_and_the_link(place: dict[str, Any], lane: str) -> None:
    assert asked(**place).lane == lane


def test_a_request_that_waits_or_was_dispatched_does_not_arrive() -> None:
    assert asked().arrives
    assert asked(arrived_us=1).arrives
    assert not asked(arrived_us=1, ticket_id="a").arrives
    assert not asked(arrived_us=1, again=True).arrives
