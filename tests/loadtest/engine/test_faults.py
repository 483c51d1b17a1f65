from typing import Any

import pytest

from loadtest.engine.faults import LEG_FAULTS, REQUEST_FAULTS, TRANSFER_FAULTS, Fault, Faults


def test_faults_strike_oldest_first_and_as_often_as_asked() -> None:
    faults = Faults()
    faults.add(Fault("reset", count=2))
    faults.add(Fault("close"))

    assert [fault and fault.kind for fault in (faults.take() for _ in range(4))] == [
        "reset",
        "reset",
        "close",
        "close",
    ]
    faults.clear()
    assert faults.take() is None


def test_a_fault_without_requests_to_hit_is_not_kept() -> None:
    faults = Faults()
    faults.add(Fault("unhealthy"))

    assert faults.unhealthy
    assert faults.take() is None
    faults.clear()
    assert not faults.unhealthy


def test_a_fault_is_read_from_json() -> None:
    fields = {"kind": "error", "after_chunks": 2, "count": 1, "seconds": 0.5, "status": 503}

    assert Fault.parse(fields) == Fault("error", 2, 1, 0.5, 503)
    assert Fault.parse({"kind": "stall", "after_head": True}) == Fault("stall", after_head=True)


def test_a_fault_strikes_only_what_it_is_for() -> None:
    faults = Faults()
    for kind in ("no_params", "stall_transfer", "reset", "fail_transfer"):
        faults.add(Fault(kind, count=1))  # type: ignore[arg-type] - mypy widens the tuple

    taken = [faults.take(among) for among in (TRANSFER_FAULTS, LEG_FAULTS, REQUEST_FAULTS, TRANSFER_FAULTS)]
    assert [fault and fault.kind for fault in taken] == [
        "stall_transfer",
        "no_params",
        "reset",
        "fail_transfer",
    ]
    assert faults.take(LEG_FAULTS | TRANSFER_FAULTS | REQUEST_FAULTS) is None


@pytest.mark.parametrize(
    "fields",
    [
        5,
        {},
        {"kind": "nope"},
        {"kind": "reset", "count": -1},
        {"kind": "reset", "count": "1"},
        {"kind": "reset", "count": 1.5},
        {"kind": "reset", "count": True},
        {"kind": "reset", "nope": 1},
        {"kind": "reset", "after_head": 1},
        {"kind": "error", "status": 200},
    ],
)
def test_a_wrong_fault_is_refused(fields: Any) -> None:
    with pytest.raises(ValueError):
        Fault.parse(fields)
