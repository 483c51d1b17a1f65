"""Golden bytes cover every kind of operation."""

from loadtest.unchanged import wire
from policies import OP_KINDS


def test_every_kind_of_operation_has_golden_bytes_of_its_own() -> None:
    found = wire.facts()

    assert {name for name in found if name != "snapshot"} == {f"op {kind.__name__}" for kind in OP_KINDS}
    assert len(set(found.values())) == len(found)
    assert wire.facts() == found
