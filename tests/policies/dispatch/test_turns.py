"""Turns of requests: the rules of the decider, each with the reason that decides.

Prompts of 4,096 tokens (0.3 s), and a target backlog of 0.5 s: ``BUSY`` has 1 s of backlog, ``ROOM`` 0.4 s.
"""

from typing import Any

import msgspec
import numpy as np
import pytest
from fakes.gateway import FakeShared

from policies import (
    FULL_ATTENTION,
    Admission,
    AdmissionRules,
    BareRequest,
    Decider,
    DeciderParts,
    Decision,
    DecisionInput,
    DecisionRules,
    Feedback,
    Insert,
    Lanes,
    LengthClass,
    OpLog,
    Placed,
    Queued,
    QueueOrder,
    Shed,
    Waiting,
    WorkerPut,
    make_policy,
)

NOW_US = 1_700_000_000_000_000
PATH = b"".join(number.to_bytes(8, "little") for number in range(1, 17))
TEXT = BareRequest("m", (PATH,), 16384, 1, 1)

BUSY, ROOM, IDLE = 1_000_000, 400_000, 0
CLAIM: dict[str, Any] = {"arrived_us": NOW_US, "flow": "normal/"}


class Setup:
    """One replica, r1, and its workers with these backlogs in microseconds."""

    def __init__(
        self, *backlogs_us: int, k: float = 4.0, policy: str = "expected_cost", **rules: Any
    ) -> None:
        self.shared = FakeShared()
        self.slots = np.arange(len(backlogs_us))
        for number, backlog_us in enumerate(backlogs_us):
            self.shared.publish(WorkerPut(f"w{number}", 1, "r1", f"http://w{number}"))
            if backlog_us:
                self.shared.publish(Placed(f"p{number}", NOW_US, f"w{number}", "r2", backlog_us, 1, 1))
        fleet = self.shared.fleet
        self.lanes = Lanes(lambda _: self.slots)
        self.decider = Decider(
            DeciderParts(
                fleet,
                Feedback(fleet, OpLog("r1", self.shared.publish, lambda: NOW_US), bytes_per_token=4.0),
                "r1",
                iter(f"a{number}" for number in range(100)).__next__,
            ),
            DecisionRules(
                make_policy(policy),
                256,
                1024,
                100,
                order=QueueOrder(Admission(AdmissionRules(**rules), fleet), self.lanes, k),
            ),
        )

    def waits(
        self, request_id: str, key_us: int, worker: str = "", replica: str = "r2", service_us: int = 1
    ) -> None:
        """Let a request wait."""
        op = Waiting(
            *(request_id, NOW_US, replica, NOW_US, NOW_US + key_us, "m|", worker, "normal/"),
            *(service_us, 1, 1),
        )
        self.shared.publish(op)
        self.lanes.follow(["m|"])

    def caches(self, worker: str) -> None:
        self.shared.publish(Insert(worker, PATH, NOW_US, True))

    def decide(self, entry: dict[str, Any] | None = CLAIM, **changes: Any) -> Decision | Queued | Shed:
        parsed = msgspec.structs.replace(TEXT, **changes)
        return self.decider.decide(
            DecisionInput(parsed, FULL_ATTENTION, self.slots, NOW_US, 5.0, **entry or {})
        )

    def goes(self, entry: dict[str, Any] | None = CLAIM) -> str:
        decided = self.decide(entry)
        assert isinstance(decided, Decision)
        return decided.placed.worker

    def held(self, entry: dict[str, Any] = CLAIM) -> Waiting:
        decided = self.decide(entry)
        assert isinstance(decided, Queued)
        return decided.waiting


def entry(**changes: Any) -> dict[str, Any]:
    return CLAIM | changes


# 1. A worker with room.


def test_who_finds_room_goes() -> None:
    assert Setup(BUSY, ROOM).goes() == "w1"


def test_who_would_overtake_a_better_one_for_that_room_waits() -> None:
    """Its own key is four times its 0.297 s of work after its arrival."""
    setup = Setup(BUSY, ROOM)
    setup.waits("better", 1_180_000)
    op = setup.held()
    assert op.key_us == NOW_US + 4 * op.service_us
    assert op.service_us == pytest.approx(297_000, abs=10_000)


def test_the_price_of_leaving_a_bucket_is_no_work_of_a_request_that_waits() -> None:
    """Early rejection counts the work of those that wait as time, and the price is no time.

    The short prompt would leave its bucket of a minute's work, at a price of 0.03 s.
    """
    setup = Setup(60_000_000, BUSY)
    at_home = setup.held().service_us
    for number, bucket in enumerate(("0", "1")):
        labels = {"bucket": bucket}
        setup.shared.publish(WorkerPut(f"w{number}", 2, "r1", f"http://w{number}", labels=labels))
    spilled = setup.decider.decide(
        DecisionInput(TEXT, FULL_ATTENTION, setup.slots, NOW_US, 5.0, LengthClass(0), **CLAIM)
    )
    assert isinstance(spilled, Queued)
    assert (spilled.waiting.worker, spilled.waiting.service_us) == ("", pytest.approx(at_home, abs=1))


@pytest.mark.parametrize(("key_us", "worker"), [(1_180_000, "w0"), (1_200_000, ""), (1_200_000, "w1")])
def test_one_that_waits_for_another_worker_or_has_a_worse_key_is_not_overtaken(
    key_us: int, worker: str
) -> None:
    setup = Setup(BUSY, ROOM)
    setup.waits("other", key_us, worker)
    assert setup.goes() == "w1"


def test_whose_turn_it_is_goes_whoever_waits() -> None:
    """The room has looked: the better one's replica did not come for it."""
    setup = Setup(BUSY, ROOM)
    setup.waits("better", 0)
    assert setup.goes(entry(turn=1)) == "w1"


def test_its_own_ticket_is_in_nobodys_way() -> None:
    setup = Setup(BUSY, ROOM)
    setup.waits("mine", 0, replica="r1")
    decided = setup.decide(entry(ticket_id="mine"))
    assert isinstance(decided, Decision)
    assert decided.placed.request_id == decided.attempt.request_id == "mine"


# 2. An idle worker.


@pytest.mark.parametrize(("backlog_us", "waits"), [(220_000, True), (320_000, False)])
def test_a_request_waits_beside_an_idle_worker_only_while_starting_there_costs_more(
    backlog_us: int, waits: bool
) -> None:
    """0.02 s of work behind the backlog, which is above the target, or 0.3 s of work at once."""
    setup = Setup(backlog_us, IDLE, backlog_target_s=0.1)
    setup.caches("w0")
    if waits:
        assert setup.held().worker == "w0"
    else:
        assert setup.goes() == "w1"


def test_a_cold_prompt_never_waits_beside_an_idle_worker() -> None:
    assert Setup(BUSY, IDLE, backlog_target_s=0.1).goes() == "w1"


def test_at_the_caps_of_its_worker_it_waits_for_that_if_starting_elsewhere_costs_more() -> None:
    setup = Setup(50_000, IDLE, BUSY, backlog_target_s=0.1, worker_running_max=1)
    setup.caches("w0")
    assert setup.held().worker == "w0"


def test_an_idle_worker_is_declined_by_whom_its_busy_worker_serves_sooner() -> None:
    setup = Setup(220_000, IDLE, backlog_target_s=0.1)
    setup.caches("w0")
    assert setup.held(entry(turn=1)).worker == "w0"


@pytest.mark.parametrize(("service_us", "waits"), [(50_000, True), (200_000, False)])
def test_those_who_go_first_at_its_worker_count_in_the_price_of_waiting_there(
    service_us: int, waits: bool
) -> None:
    """0.02 s of work behind 0.15 s and the better one's, or 0.3 s of work on the idle worker."""
    setup = Setup(150_000, IDLE, backlog_target_s=0.1)
    setup.caches("w0")
    setup.waits("better", 0, "w0", service_us=service_us)
    if waits:
        assert setup.held(entry(turn=1)).worker == "w0"
    else:
        assert setup.goes(entry(turn=1)) == "w1"


def test_one_that_waits_here_has_the_idle_worker_first() -> None:
    setup = Setup(BUSY, IDLE, backlog_target_s=0.1)
    setup.caches("w0")
    setup.shared.publish(Placed("more", NOW_US, "w0", "r2", 1, 1, 1))
    setup.waits("better", 0, "w1", replica="r1")
    assert setup.held().worker == ""
    assert setup.goes(entry(turn=1)) == "w1"


def test_an_idle_worker_is_left_to_the_best_of_all_replicas() -> None:
    setup = Setup(BUSY, IDLE)
    setup.waits("better", 0, replica="r2")
    setup.held()
    assert setup.goes(entry(turn=1)) == "w1"  # the other replica has left it unused


# 3. Another worker's room.


def test_who_is_offered_a_room_takes_it_if_it_costs_least_there() -> None:
    """Less is in the other engine, but another request goes first there."""
    setup = Setup(ROOM, ROOM - 100_000)
    setup.waits("better", 0, "w1", service_us=200_000)
    assert setup.goes(entry(turn=0)) == "w0"


def test_who_is_offered_a_room_declines_it_if_another_worker_costs_less() -> None:
    """It waits for that one, whose room another request has first, and says so."""
    setup = Setup(ROOM, ROOM - 100_000)
    setup.waits("better", 0, "w1")
    assert setup.held(entry(turn=0)).worker == "w1"
    assert setup.held().worker == ""


def test_who_has_its_cache_elsewhere_declines_and_waits_there() -> None:
    setup = Setup(ROOM, 600_000)
    setup.caches("w1")
    path = PATH + b"".join(number.to_bytes(8, "little") for number in range(101, 133))
    longer = {"paths": (path,), "prompt_bytes": 3 * 16384}
    declined = setup.decide(entry(turn=0), **longer)
    assert isinstance(declined, Queued)
    assert declined.waiting.worker == "w1"
    assert declined.safe_blocks == 16
    assert declined.path == path
    setup.shared.publish(declined.waiting)
    setup.lanes.follow(["m|"])
    still = setup.decide(entry(ticket_id=declined.waiting.request_id), **longer)
    assert isinstance(still, Queued)
    assert still.waiting.worker == "w1"
    behind_it = setup.decide(**longer)
    assert isinstance(behind_it, Decision)
    assert behind_it.placed.worker == "w0"


# 4. The workers for which it waits.


def test_without_a_preference_it_waits_for_any_worker() -> None:
    assert Setup(BUSY, BUSY).held().worker == ""


def test_who_prefers_its_busy_worker_to_an_idle_one_waits_for_that() -> None:
    setup = Setup(250_000, BUSY, backlog_target_s=0.1)
    setup.caches("w0")
    assert setup.held().worker == "w0"


def test_who_may_not_go_to_all_of_its_lane_waits_for_a_worker_that_it_may_go_to() -> None:
    assert Setup(BUSY, BUSY).held(entry(narrowed=True)).worker in ("w0", "w1")


def test_a_ticket_says_all_that_the_order_needs() -> None:
    op = Setup(BUSY).held(entry(arrived_us=NOW_US - 7, flow="low/acme"))
    assert (op.request_id, op.at_us, op.replica, op.arrived_us) == ("a0", NOW_US, "r1", NOW_US - 7)
    assert (op.lane, op.flow, op.uncached_tokens, op.context_tokens) == ("m|", "low/acme", 4096, 4196)


def test_a_request_that_waits_already_keeps_its_ticket() -> None:
    assert Setup(BUSY).held(entry(ticket_id="mine")).request_id == "mine"


# Requests that never wait, and charges.


def test_without_a_claim_nobody_waits() -> None:
    assert Setup(BUSY, BUSY).goes(None) in ("w0", "w1")


def test_holding_is_not_placing() -> None:
    setup = Setup(BUSY, policy="round_robin")
    setup.decide()
    assert setup.decider.placed_count == 0


@pytest.mark.parametrize(("waiting", "flow"), [(False, ""), (True, "normal/")])
def test_a_flow_is_charged_while_somebody_waits(waiting: bool, flow: str) -> None:
    setup = Setup(ROOM)
    if waiting:
        setup.waits("worse", 10**9)
    decided = setup.decide()
    assert isinstance(decided, Decision)
    assert decided.placed.flow == flow
