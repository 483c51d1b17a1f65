"""Workers that serve each lane of the queue."""

import numpy as np
import pytest

from policies import (
    ALONE,
    ANY_LENGTH,
    Admission,
    AdmissionRules,
    DecodeFit,
    FleetState,
    Lanes,
    LengthClass,
    Pairing,
    Partners,
    Placed,
    Slots,
    WorkerPut,
    lane_of,
    model_and_length,
)
from policies.disaggregation import DecodeSelector
from policies.disaggregation.candidate_sites import CandidatesBySite, SiteCandidates
from policies.dispatch.queue_lanes import lane_by


@pytest.mark.parametrize(
    ("length", "lane"),
    [(ANY_LENGTH, "m|"), (LengthClass(2), "m|2"), (LengthClass(exceeds_tokens=4096), "m|-4097")],
)
def test_the_log_carries_a_length_as_one_number(length: LengthClass, lane: str) -> None:
    assert lane_of("m", length) == lane


@pytest.mark.parametrize("lane", ["m|-1", "m|-0", "m|--5", "m|x", "m|\u00b2", "m|" + "9" * 30])
def test_a_lane_of_no_length_is_for_any(lane: str) -> None:
    assert model_and_length(lane) == ("m", ANY_LENGTH)


@pytest.mark.parametrize("model", [None, "m", "org/name:tag", "a|b", "|", "me@home", "@|@"])
@pytest.mark.parametrize(
    "length", [ANY_LENGTH, LengthClass(0), LengthClass(12), LengthClass(exceeds_tokens=4096)]
)
def test_a_lane_says_what_it_was_named_after(model: str | None, length: LengthClass) -> None:
    assert model_and_length(lane_of(model, length)) == (model, length)
    for link in ("", "far>here", "a|b>c@d"):
        assert model_and_length(lane_by(lane_of(model, length), link)) == (model, length)


def test_lanes_are_followed_when_workers_or_lanes_change_and_not_otherwise() -> None:
    slots: dict[str, Slots] = {"a|": np.array([0, 2]), "b|": np.array([2, 5]), "c|": np.array([7])}
    asked: list[str] = []

    def slots_of(lane: str) -> Slots:
        asked.append(lane)
        return slots[lane]

    lanes = Lanes(slots_of)
    assert (lanes.of(2), lanes.slots.tolist(), lanes.knows("a|")) == ((), [], False)
    lanes.follow(["b|", "a|"])
    assert [list(lanes.of(slot)) for slot in (0, 2, 5, 7)] == [["a|"], ["a|", "b|"], ["b|"], []]
    assert lanes.slots.tolist() == [0, 2, 5]
    assert lanes.knows("a|")
    before = lanes.slots
    lanes.follow(["a|", "b|"])
    assert lanes.slots is before
    slots["a|"] = np.array([0])
    lanes.follow(["a|", "b|"])
    assert [list(lanes.of(slot)) for slot in (0, 2)] == [["a|"], ["b|"]]
    lanes.follow(["a|", "b|", "c|"])
    assert list(lanes.of(7)) == ["c|"]
    lanes.follow(["c|"])
    assert (list(lanes.of(0)), lanes.slots.tolist()) == ([], [7])
    assert lanes.serving("b|").tolist() == [2, 5]


def test_only_whose_partners_have_room_are_worth_a_look() -> None:
    """Two lanes share a plain worker; in the first one a prefill worker needs decode workers that fill up."""
    fleet, now_us = FleetState(), 1_000_000
    for slot, role in enumerate(("plain", "prefill", "decode")):
        fleet.apply(WorkerPut(f"w{slot}", 1, "r", f"http://w{slot}", role, capacity_tokens=10_000))
    slots = {"a|": np.arange(2), "b|": np.arange(1)}
    pairing = Pairing(slots["a|"], np.array([ALONE, 0]), (Partners("sglang", np.array([2])),))
    pairings = {"a|": pairing}
    decode_selector = DecodeSelector(fleet, Admission(AdmissionRules(), fleet), lambda _: DecodeFit())
    lanes = Lanes(slots.__getitem__, pairings.get, decode_selector)
    lanes.follow(["b|"])
    assert not lanes.pairs
    assert lanes.open(slots["b|"], now_us) is slots["b|"]
    assert lanes.is_open(0, now_us)
    lanes.follow(["a|", "b|"])
    assert lanes.pairs
    assert lanes.open(slots["a|"], now_us) is slots["a|"]
    assert lanes.is_open(1, now_us)
    assert lanes.can_decode("a|", 9_000, now_us)
    assert not lanes.can_decode("b|", 1, now_us)
    fleet.apply(Placed("r", now_us, "w2", "r", 0, 0, 9_500, ()))
    assert lanes.open(slots["a|"], now_us).tolist() == [0]
    assert [lanes.is_open(slot, now_us) for slot in (0, 1, 2)] == [True, False, False]
    assert not lanes.can_decode("a|", 1, now_us)


def test_lanes_are_followed_when_partners_change() -> None:
    slots, found = np.arange(1), [Pairing(np.arange(1), np.array([ALONE]), ())]
    lanes = Lanes(lambda _: slots, lambda _: found[0])
    lanes.follow(["a|"])
    before = lanes.slots
    lanes.follow(["a|"])
    assert lanes.slots is before
    found[0] = Pairing(np.arange(1), np.array([ALONE]), ())
    lanes.follow(["a|"])
    assert lanes.slots is not before


class Sited:
    """Workers 0 and 1 are local, 2 and 3 behind one link, 4 behind another."""

    def __init__(self) -> None:
        self.parted: CandidatesBySite | None = CandidatesBySite(
            EVERY,
            np.array([0, 1]),
            (
                SiteCandidates("far", "far>here", np.array([2, 3])),
                SiteCandidates("n|ear", "n|ear>here", np.array([4])),
            ),
        )

    def by_site(self, pairing: Pairing, slots: Slots) -> CandidatesBySite | None:
        assert pairing is PAIRING
        assert slots is EVERY
        return self.parted

    def open(self, pairing: Pairing, slots: Slots, now_us: int) -> object:
        return slots != 3

    def is_open(self, pairing: Pairing, slot: int, now_us: int, tokens: float) -> bool:
        return slot != 3


EVERY = np.arange(5)
PAIRING = Pairing(EVERY, np.zeros(5, dtype=np.intp), (Partners("sglang", np.array([9])),))


def test_the_side_of_a_link_is_served_by_its_workers_and_helped_by_the_others() -> None:
    sited = Sited()
    lanes = Lanes(lambda _: EVERY, lambda _: PAIRING, sited)  # type: ignore[arg-type]
    local, far, near = (lane_by("m|", link) for link in ("", "far>here", "n|ear>here"))
    lanes.follow([local, far])
    assert lanes.serving(near).tolist() == [4]
    assert [list(lanes.of(slot)) for slot in range(5)] == [[local], [local], [far], [far], []]
    assert [list(lanes.beyond(slot)) for slot in (0, 2, 4)] == [[far], [local], [local, far]]
    assert lanes.slots.tolist() == [0, 1, 2, 3, 4]
    assert lanes.open(EVERY, 0).tolist() == [0, 1, 2, 4]
    assert [lanes.is_open(slot, 0) for slot in (3, 4)] == [False, True]
    before = lanes.slots
    lanes.follow([local, far])
    assert lanes.slots is before


def test_without_sides_everybody_serves_what_waited_on_one() -> None:
    sited = Sited()
    lanes = Lanes(lambda _: EVERY, lambda _: PAIRING, sited)  # type: ignore[arg-type]
    far = lane_by("m|", "far>here")
    lanes.follow([far])
    sited.parted = None
    lanes.follow([far])
    assert lanes.serving(far) is EVERY
    assert [list(lanes.of(slot)) for slot in (0, 4)] == [[far], [far]]
    assert lanes.beyond(0) == ()
