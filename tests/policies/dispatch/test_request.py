"""Facts of a request are the same from every source."""

import msgspec

from policies import BareRequest, RequestFacts
from router.gateway.parsing import ParsedRequest


def test_parsed_and_bare_requests_have_the_facts() -> None:
    facts = {name for name, value in vars(RequestFacts).items() if isinstance(value, property)}

    assert {field.name for field in msgspec.structs.fields(BareRequest)} == facts
    assert facts <= {field.name for field in msgspec.structs.fields(ParsedRequest)}
