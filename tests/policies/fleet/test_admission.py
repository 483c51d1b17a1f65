"""Room of workers: below the target backlog and the caps; no report, old or absurd, stops dispatch."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    Admission,
    AdmissionRules,
    EarlyEnds,
    EarlyRatio,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    Placed,
    Reported,
    WorkerGone,
    WorkerPut,
)
from policies.fleet.admission import MEMORY, RATIO_MIN

NOW_US = 1_000_000_000
RULES = AdmissionRules(
    backlog_target_s=0.5,
    backlog_target_s_max=4.0,
    worker_running_max=0,
    kv_ratio_max=0.9,
    report_age_s_max=10.0,
)


def fleet_of(workers: int = 1, **kwargs: object) -> FleetState:
    """Workers w0:1, w1:1, ... in slots 0, 1, ..."""
    fleet = FleetState(FleetRules())
    for number in range(workers):
        fleet.apply(WorkerPut(f"w{number}:1", 1, "one", f"http://w{number}:1", **kwargs))  # type: ignore[arg-type]
    return fleet


def give(
    fleet: FleetState, name: str, *, service_s: float = 1.0, tokens: int = 1_000, worker: str = "w0:1"
) -> None:
    fleet.apply(Placed(name, NOW_US, worker, "one", round(service_s * 1e6), tokens, tokens))


def test_a_worker_has_room_until_its_backlog_reaches_the_target() -> None:
    fleet = fleet_of()
    admission = Admission(RULES, fleet)
    assert admission.has_room(0, NOW_US)
    give(fleet, "r1", service_s=0.49)
    assert admission.has_room(0, NOW_US)
    give(fleet, "r2", service_s=0.01)
    assert not admission.has_room(0, NOW_US)


def test_other_rules_count_at_the_next_look() -> None:
    fleet = fleet_of()
    admission = Admission(RULES, fleet)
    give(fleet, "r1", service_s=1.0)
    assert not admission.has_room(0, NOW_US)
    admission.use(AdmissionRules(backlog_target_s=2.0))
    assert admission.has_room(0, NOW_US)


def test_room_comes_back_with_time_and_with_a_first_token() -> None:
    fleet = fleet_of()
    admission = Admission(RULES, fleet)
    give(fleet, "r1", service_s=1.0)
    assert not admission.has_room(0, NOW_US + 500_000)
    assert admission.has_room(0, NOW_US + 500_001)
    fleet.apply(FirstToken("r1", NOW_US + 100))
    assert admission.has_room(0, NOW_US + 100)


def test_a_class_whose_queues_end_early_gets_a_longer_target_within_bounds() -> None:
    """Half of the predicted time: twice the predicted seconds for the same real ones."""
    fleet = fleet_of(2, labels={"worker_class": "fast"})
    fleet.apply(WorkerPut("w1:1", 2, "one", "http://w1:1", labels={"worker_class": "other"}))
    admission = Admission(RULES, fleet)
    assert admission.target_s(0) == 0.5
    for at_us, ratio, target_s in ((1, 0.5, 1.0), (2, 0.05, 4.0), (3, 1.0, 0.5)):
        fleet.apply(EarlyRatio("fast", at_us, "one", ratio))
        assert admission.target_s(0) == target_s
        assert admission.target_s(1) == 0.5


def test_the_newest_word_about_early_ends_wins_and_survives_a_snapshot() -> None:
    fleet, copy = fleet_of(), FleetState(FleetRules())
    for op in (EarlyRatio("default", 5, "two", 0.5), EarlyRatio("default", 5, "one", 0.9)):
        fleet.apply(op)
    assert fleet.early_ratio("default") == 0.5
    copy.restore(fleet.snapshot())
    assert Admission(RULES, copy).target_s(0) == 1.0


@pytest.mark.parametrize(
    ("label", "reported", "setting", "running_max"),
    [
        ("", 0, 0, float("inf")),
        ("", 0, 8, 8),
        ("", 4, 8, 4),
        ("2", 4, 8, 2),
        ("many", 4, 8, 4),
        ("0", 4, 8, 4),
        ("", 16, 8, 16),
    ],
)
def test_the_bound_of_requests_is_the_label_or_the_report_or_the_setting(
    label: str, reported: int, setting: int, running_max: float
) -> None:
    fleet = fleet_of(labels={"max_running_requests": label})
    fleet.apply(Reported("w0:1", NOW_US, "one", running_max=reported))
    assert Admission(AdmissionRules(worker_running_max=setting), fleet).running_max(0) == running_max


def test_a_worker_at_its_bound_of_requests_has_no_room_until_one_ends() -> None:
    fleet = fleet_of(labels={"max_running_requests": "2"})
    admission = Admission(RULES, fleet)
    for name in ("r1", "r2"):
        assert admission.below_caps(0, NOW_US)
        give(fleet, name, service_s=0.0)
    assert not admission.below_caps(0, NOW_US)
    assert not admission.has_room(0, NOW_US)
    fleet.apply(Finished("r1", NOW_US))
    assert admission.has_room(0, NOW_US)


def test_requests_that_others_sent_count_while_the_report_is_fresh() -> None:
    """Two of ours and two of others run; a third of ours makes it five."""
    fleet = fleet_of(labels={"max_running_requests": "5"})
    admission = Admission(RULES, fleet)
    for name in ("r1", "r2"):
        give(fleet, name, service_s=0.0)
    fleet.apply(Reported("w0:1", NOW_US, "one", running=3, waiting=1, inflight_requests=2))
    assert admission.below_caps(0, NOW_US)
    give(fleet, "r3", service_s=0.0)
    assert not admission.below_caps(0, NOW_US + 10_000_000)
    assert admission.below_caps(0, NOW_US + 10_000_001)


def test_held_tokens_are_those_reported_and_what_was_dispatched_since() -> None:
    """100,000 tokens, 90,000 may be held. 80,000 were; 4,000 and 6,000 came, 4,000 went."""
    fleet = fleet_of(capacity_tokens=100_000)
    admission = Admission(RULES, fleet)
    give(fleet, "before", tokens=200_000, service_s=0.0)
    assert admission.below_caps(0, NOW_US), "our own count knows nothing of shared prefixes"
    fleet.apply(
        Reported("w0:1", NOW_US, "one", kv_tokens=80_000, inflight_requests=1, inflight_tokens=200_000)
    )
    give(fleet, "r1", tokens=4_000, service_s=0.0)
    assert admission.below_caps(0, NOW_US)
    give(fleet, "r2", tokens=6_000, service_s=0.0)
    assert not admission.below_caps(0, NOW_US)
    fleet.apply(Finished("r1", NOW_US))
    assert admission.below_caps(0, NOW_US)


def test_a_share_of_its_capacity_may_be_held_the_worker_s_own_or_the_assumed() -> None:
    fleet = FleetState(FleetRules(capacity_tokens=50_000))
    for number, capacity_tokens in enumerate((100_000, 0)):
        fleet.apply(
            WorkerPut(f"w{number}:1", 1, "one", f"http://w{number}:1", capacity_tokens=capacity_tokens)
        )
    admission = Admission(RULES, fleet)
    assert [admission.kv_tokens_max(slot) for slot in (0, 1)] == [90_000, 45_000]
    assert Admission(RULES, fleet_of()).kv_tokens_max(0) == float("inf")


def test_what_a_decode_worker_lacks_is_the_part_of_what_it_has_that_must_end() -> None:
    """A capacity of 10,000, of which 9,000 may be held, and four requests at a time."""
    fleet = fleet_of(4, role="decode", capacity_tokens=10_000)
    admission = Admission(AdmissionRules(worker_running_max=4, kv_ratio_max=0.9), fleet)
    for number in range(4):
        give(fleet, f"many{number}", tokens=10, worker="w1:1")
    give(fleet, "much", tokens=8_000, worker="w2:1")
    give(fleet, "huge", tokens=100_000, worker="w3:1")
    slots = np.arange(4)
    assert admission.lacking(slots, 1_000, NOW_US).tolist() == [0, 0.25, 0, (101_000 - 9_000) / 100_000]
    assert admission.lacking(slots, 1_001, NOW_US).tolist()[2] == 1 / 8_000
    # No worker can ever hold it: an empty one takes it, the others must end all they have.
    assert admission.lacking(slots, 200_000, NOW_US).tolist() == [0, 1, 1, 1]


def test_a_report_takes_room_for_decode_but_never_makes_any() -> None:
    """Engines hold less than is promised to them: prompts that are still prefilled elsewhere."""
    fleet = fleet_of(2, role="decode", capacity_tokens=10_000)
    admission = Admission(RULES, fleet)
    for worker, tokens in (("w0:1", 0), ("w1:1", 9_000)):
        give(fleet, f"r {worker}", tokens=5_000, worker=worker)
        fleet.apply(
            Reported(worker, NOW_US, "one", kv_tokens=tokens, inflight_requests=1, inflight_tokens=5_000)
        )
    slots = np.arange(2)
    assert (admission.lacking(slots, 4_000, NOW_US) > 0).tolist() == [False, True]
    assert (admission.lacking(slots, 4_001, NOW_US) > 0).tolist() == [True, True]
    assert (admission.lacking(slots, 4_000, NOW_US + 10_000_001) > 0).tolist() == [False, False]


def test_a_stale_report_does_not_stop_dispatch() -> None:
    fleet = fleet_of(capacity_tokens=100_000)
    admission = Admission(RULES, fleet)
    give(fleet, "r1", service_s=0.0)
    fleet.apply(Reported("w0:1", NOW_US, "one", running=500, kv_tokens=100_000, running_max=64))
    assert not admission.below_caps(0, NOW_US + 10_000_000)
    assert admission.below_caps(0, NOW_US + 10_000_001)


def test_an_absurd_report_cannot_keep_a_worker_without_our_work() -> None:
    fleet = fleet_of(capacity_tokens=100_000)
    admission = Admission(RULES, fleet)
    fleet.apply(Reported("w0:1", NOW_US, "one", running=500, kv_tokens=10**9, running_max=1))
    assert admission.has_room(0, NOW_US)
    assert admission.idle(np.array([0]), NOW_US)


def test_idle_is_who_has_nothing_to_prefill_and_is_below_its_caps() -> None:
    fleet = fleet_of(2, labels={"max_running_requests": "1"})
    admission, both = Admission(RULES, fleet), np.array([0, 1])
    give(fleet, "r1")
    assert admission.idle(both, NOW_US)
    assert not admission.idle(both[:1], NOW_US)
    give(fleet, "r2", worker="w1:1")
    assert not admission.idle(both, NOW_US)
    fleet.apply(FirstToken("r2", NOW_US))
    assert not admission.idle(both, NOW_US), "it decodes one, and takes no more"
    fleet.apply(Finished("r2", NOW_US))
    assert admission.idle(both, NOW_US)
    assert not admission.idle(both[:0], NOW_US)


def test_for_a_replica_that_is_closed_nobody_has_room_not_even_an_idle_worker() -> None:
    fleet = fleet_of(2)
    admission = Admission(RULES, fleet)
    slots = np.array([0, 1])
    admission.closed = True
    assert not admission.has_room(0, NOW_US)
    assert not admission.below_caps(0, NOW_US)
    assert not admission.idle(slots, NOW_US)
    assert not len(admission.with_room(slots, NOW_US))
    assert not len(admission.capped(slots, NOW_US))
    admission.closed = False
    assert admission.has_room(0, NOW_US)
    assert admission.with_room(slots, NOW_US) is slots


def test_a_slot_that_is_given_to_another_worker_has_its_own_bounds() -> None:
    fleet = FleetState(FleetRules(memory_s=1.0))
    fleet.apply(WorkerPut("a:1", 1, "one", "http://a:1", labels={"max_running_requests": "1"}))
    fleet.apply(Reported("a:1", 2, "one", running_max=1, kv_tokens=5))
    admission = Admission(RULES, fleet)
    assert admission.running_max(0) == 1
    fleet.apply(WorkerGone("a:1", 3, "one"))
    fleet.collect(NOW_US)
    fleet.apply(WorkerPut("b:1", NOW_US, "one", "http://b:1"))
    assert fleet.workers()[0].slot == 0
    assert admission.running_max(0) == float("inf")
    fleet.apply(Reported("a:1", 2, "one", running_max=1))
    assert [*fleet.reports] == [], "said before it was removed"


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 20))
def test_the_columns_say_what_each_worker_says(seed: int, workers: int) -> None:
    """An answer for many workers at once equals the answers for each, for any load and reports."""
    random = Random(seed)
    fleet = FleetState(FleetRules())
    for number in range(workers):
        labels = {"max_running_requests": str(random.randint(1, 4))} if random.random() < 0.5 else {}
        capacity_tokens = random.choice((0, 10_000))
        fleet.apply(
            WorkerPut(
                f"w{number}:1",
                1,
                "one",
                f"http://w{number}:1",
                capacity_tokens=capacity_tokens,
                labels=labels,
            )
        )
        for request in range(random.randint(0, 3)):
            service_s = random.choice((0.0, 0.2, 0.6))
            name = f"w{number}r{request}"
            give(fleet, name, service_s=service_s, tokens=random.randint(1, 5_000), worker=f"w{number}:1")
            if random.random() < 0.4:
                fleet.apply(FirstToken(name, NOW_US))
        if random.random() < 0.7:
            at_us = NOW_US - random.choice((0, 10_000_000, 10_000_001))
            fleet.apply(
                Reported(
                    f"w{number}:1",
                    at_us,
                    "one",
                    random.randint(-1, 6),
                    random.randint(-1, 2),
                    random.choice((-1, 4_000, 9_500)),
                    random.choice((0, 2, 5)),
                    random.randint(0, 2),
                    random.randint(0, 3_000),
                )
            )
    admission, slots = Admission(RULES, fleet), np.arange(workers)
    room = [slot for slot in range(workers) if admission.has_room(slot, NOW_US)]
    below = [slot for slot in range(workers) if admission.below_caps(slot, NOW_US)]
    assert admission.with_room(slots, NOW_US).tolist() == room
    assert admission.capped(slots, NOW_US).tolist() == below
    idle = any(fleet.loads.prefill_us[slot] == 0 for slot in below)
    assert admission.idle(slots, NOW_US) == idle
    if len(below) == workers:
        assert admission.capped(slots, NOW_US) is slots


def test_who_always_needs_half_of_the_predicted_time_is_found_to() -> None:
    early = EarlyEnds()
    assert early.ratio == 1.0
    for _ in range(10 * MEMORY):
        early.observe(2.0, 1.0)
    assert early.ratio == pytest.approx(0.5, abs=1e-3)


def test_late_requests_do_not_make_up_for_early_ones() -> None:
    early = EarlyEnds()
    for _ in range(10 * MEMORY):
        early.observe(1.0, 0.5)
        early.observe(1.0, 20.0)
    assert early.ratio == pytest.approx(0.75, abs=0.01)


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0, 1e6))))
def test_the_ratio_stays_within_its_bounds_whatever_is_observed(observed: list[tuple[float, float]]) -> None:
    early = EarlyEnds()
    for predicted_s, observed_s in observed:
        early.observe(predicted_s, observed_s)
        assert RATIO_MIN <= early.ratio <= 1.0
