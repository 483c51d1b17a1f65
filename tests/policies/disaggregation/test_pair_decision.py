"""A request that a prefill worker begins and a decode worker ends."""

from typing import Any

import msgspec
import numpy as np
from fakes.gateway import FakeShared

from policies import (
    ALONE,
    FULL_ATTENTION,
    Admission,
    AdmissionRules,
    BareRequest,
    DeciderParts,
    Decision,
    DecisionInput,
    DecisionRules,
    DecodeFit,
    EarlyRejection,
    Feedback,
    Finished,
    FirstToken,
    Lanes,
    Op,
    OpLog,
    Pairing,
    Partners,
    Placed,
    Queued,
    QueueOrder,
    ServiceLevel,
    Shed,
    Slots,
    WorkerPut,
    make_policy,
)
from policies.disaggregation import DecodeSelector, PairDecider

NOW_US = 1_700_000_000_000_000
PATH = b"".join(number.to_bytes(8, "little") for number in range(1, 17))
TEXT = BareRequest("m", (PATH,), 16384, 1, 1)
CONTEXT_TOKENS = 4096 + 100
CLAIM: dict[str, Any] = {"arrived_us": NOW_US, "flow": "normal/"}


class Setup:
    """One replica, r1, and workers that hold 10,000 tokens: two such prompts with their answers.

    Args:
        workers: ``ROLE`` or ``ROLE:PROTOCOL`` of each, in the order of their slots.
    """

    def __init__(
        self,
        *workers: str,
        policy: str = "expected_cost",
        prefill_policy: str = "",
        level: ServiceLevel | None = None,
        **rules: Any,
    ) -> None:
        self.shared = FakeShared()
        for number, worker in enumerate(workers):
            self.shared.publish(
                WorkerPut(
                    f"w{number}",
                    1,
                    "r1",
                    f"http://w{number}",
                    worker.partition(":")[0],
                    capacity_tokens=10_000,
                )
            )
        self.slots, self.pairing = paired(workers)
        fleet = self.shared.fleet
        self.fit = DecodeFit()
        admission = Admission(AdmissionRules(**rules), fleet)
        decode_selector = DecodeSelector(fleet, admission, lambda _: self.fit)
        rejection = None if level is None else EarlyRejection(level, fleet, lambda _: self.fit)
        self.decider = PairDecider(
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
                order=QueueOrder(admission, Lanes(lambda _: self.slots), 4.0, rejection=rejection),
                prefill_policy=make_policy(prefill_policy) if prefill_policy else None,
            ),
            decode_selector=decode_selector,
        )

    def publish(self, *ops: Op) -> None:
        for op in ops:
            self.shared.publish(op)

    def decide(self, entry: dict[str, Any] | None = CLAIM, **changes: Any) -> Decision | Queued | Shed:
        parsed = msgspec.structs.replace(TEXT, **changes)
        return self.decider.decide(
            DecisionInput(
                parsed, FULL_ATTENTION, self.slots, NOW_US, 5.0, pairing=self.pairing, **entry or {}
            )
        )

    def place(self, entry: dict[str, Any] | None = CLAIM, **changes: Any) -> Decision:
        """Decide, and say so."""
        decision = self.decide(entry, **changes)
        assert isinstance(decision, Decision)
        self.publish(decision.placed)
        if decision.decode is not None:
            self.publish(decision.decode.placed)
        return decision


def paired(workers: tuple[str, ...]) -> tuple[Slots, Pairing]:
    """Workers that may begin a request, and their decode workers."""
    decode: dict[str, list[int]] = {}
    for slot, worker in enumerate(workers):
        role, _, protocol = worker.partition(":")
        if role == "decode":
            decode.setdefault(protocol or "sglang", []).append(slot)
    names = sorted(decode)
    partners = tuple(Partners(name, np.array(decode[name])) for name in names)
    begin, groups = [], []
    for slot, worker in enumerate(workers):
        role, _, protocol = worker.partition(":")
        if role != "decode" or protocol in ("nixl", "mooncake"):
            begin.append(slot)
            groups.append(names.index(protocol or "sglang") if role == "prefill" else ALONE)
    slots = np.array(begin)
    return slots, Pairing(slots, np.array(groups), partners)


def test_a_pair_is_two_attempts_with_an_id_of_their_own() -> None:
    decision = Setup("prefill", "decode").place()
    decode = decision.decode
    assert decode is not None
    assert (decision.placed.request_id, decode.placed.request_id) == ("a0", "a1")
    assert (decision.placed.worker, decode.placed.worker) == ("w0", "w1")
    assert (decision.attempt.worker_id, decode.attempt.worker_id) == ("w0", "w1")
    assert decision.placed.service_us > 0
    assert decode.placed == Placed(
        "a1", NOW_US, "w1", "r1", 0, 0, context_tokens=CONTEXT_TOKENS, paths=(), ends=False
    )


def test_a_plain_worker_beside_pairs_does_all() -> None:
    decision = Setup("plain", "decode").place()
    assert decision.placed.worker == "w0"
    assert decision.decode is None


def test_what_a_decode_worker_keeps_the_log_hears() -> None:
    setup = Setup("prefill:nixl", "decode:nixl")
    setup.publish(Placed("busy", NOW_US, "w1", "r2", 0, 0, 100), FirstToken("busy", NOW_US))
    decision = setup.place()
    assert decision.decode is not None
    assert decision.decode.placed.paths == (PATH,)


def test_no_more_is_sent_than_decode_workers_can_hold() -> None:
    """Two fit; the third waits, for any worker of its lane, until one has ended."""
    setup = Setup("prefill", "prefill", "decode")
    first = setup.place()
    setup.place()
    held = setup.decide()
    assert isinstance(held, Queued)
    assert held.waits_for_decode
    assert held.waiting.worker == ""
    assert first.decode is not None
    setup.publish(Finished(first.decode.placed.request_id, NOW_US + 1))
    assert isinstance(setup.decide(), Decision)


def test_a_request_that_never_fits_is_sent_to_an_empty_worker() -> None:
    decision = Setup("prefill", "decode").place(prompt_bytes=4 * 20_000)
    assert decision.decode is not None


def test_who_never_waits_goes_to_a_full_worker() -> None:
    setup = Setup("prefill", "decode")
    for _ in range(3):
        assert setup.place(entry=None).decode is not None


def test_the_slow_loop_counts_what_is_left_to_prefill_where_prefill_and_decode_are_apart() -> None:
    assert Setup("prefill", "decode").place().placed.home_uncached_tokens == 4096
    plain = Setup("plain")
    plain.pairing = None
    assert plain.place().placed.home_uncached_tokens == -1


def test_a_decision_says_what_it_expects_of_both() -> None:
    setup = Setup("prefill", "decode")
    setup.publish(Placed("queue", NOW_US, "w0", "r2", 300_000, 1, 1))
    decision = setup.place()
    prefill, decode = decision.attempt.chosen, decision.decode
    assert decode is not None
    assert (prefill.queue_s, prefill.transfer_s, prefill.stall_s) == (0.3, 0.0, 0.0)
    assert decode.attempt.chosen.queue_s == 0
    assert decode.attempt.chosen.tpot_s > 0
    assert decode.attempt.chosen.service_s == 0
    assert decode.attempt.chosen.estimated_ttft_s == prefill.estimated_ttft_s
    assert decode.attempt.guard_us == 0


def test_a_decode_worker_that_holds_the_prefix_takes_the_request_whole() -> None:
    setup = Setup("prefill:nixl", "decode:nixl")
    setup.publish(
        Placed("before", NOW_US, "w1", "r2", 0, 0, 100, (PATH,)), Finished("before", NOW_US, NOW_US)
    )
    decision = setup.place()
    assert decision.decode is None
    assert decision.placed.worker == "w1"
    assert decision.placed.safe_blocks == 16
    assert decision.placed.service_us > 0


def test_a_decode_worker_without_room_takes_nothing_whole() -> None:
    """It holds all of the prompt, and has no room for its 4,196 tokens: the request waits for any worker."""
    setup = Setup("prefill:nixl", "decode:nixl")
    setup.publish(
        Placed("full", NOW_US, "w1", "r2", 0, 0, 9_000, (PATH,)),
        FirstToken("full", NOW_US),
    )
    held = setup.decide()
    assert isinstance(held, Queued)
    assert held.waits_for_decode
    assert held.waiting.worker == ""


def test_a_policy_that_does_not_count_in_seconds_leaves_decode_workers_alone() -> None:
    setup = Setup("prefill:nixl", "decode:nixl", policy="least_load")
    setup.publish(Placed("busy", NOW_US, "w0", "r2", 0, 0, 100))
    assert setup.place().placed.worker == "w0"


def test_where_workers_only_prefill_another_policy_may_choose() -> None:
    """Both prefill workers are idle; one would find the prompt, and a rule that ignores that takes turns."""
    for prefill_policy, workers in (("", {"w0"}), ("round_robin", {"w0", "w1"})):
        setup = Setup(
            "prefill",
            "prefill",
            "decode",
            prefill_policy=prefill_policy,
            backlog_target_s=100.0,
            backlog_target_s_max=100.0,
        )
        setup.publish(Placed("p", NOW_US, "w0", "r2", 0, 0, 0, (PATH,)), Finished("p", NOW_US, NOW_US))
        assert {setup.place(entry=None).placed.worker for _ in range(2)} == workers


def test_while_pairs_lack_room_a_plain_worker_that_is_idle_takes_the_request() -> None:
    setup = Setup("plain", "prefill", "decode")
    setup.publish(
        Placed("full", NOW_US, "w2", "r2", 0, 0, 9_000), Placed("queue", NOW_US, "w0", "r2", 1, 1, 1)
    )
    assert setup.place().placed.worker == "w0"


def test_a_request_waits_for_a_pair_beside_an_idle_plain_worker_that_costs_more() -> None:
    """Ten answers would stall there for 0.3 s each, and the pair has room in 0.2 s.

    Nothing is sent to a decode worker that is full. Until it has room any worker of the lane may do.
    """
    setup = Setup("plain", "prefill", "decode")
    for number in range(10):
        setup.publish(Placed(f"r{number}", NOW_US, "w0", "r2", 0, 0, 1), FirstToken(f"r{number}", NOW_US))
    setup.publish(Placed("full", NOW_US, "w2", "r2", 0, 0, 5_400))
    held = setup.decide()
    assert isinstance(held, Queued)
    assert held.waiting.worker == ""
    setup.publish(Finished("full", NOW_US + 1))
    decision = setup.place()
    assert (decision.placed.worker, decision.attempt.chosen.stall_s) == ("w1", 0.0)


def test_a_request_that_waits_goes_to_whoever_offers_room_only_if_it_can_be_decoded() -> None:
    setup = Setup("prefill", "prefill", "decode")
    setup.publish(Placed("full", NOW_US, "w2", "r2", 0, 0, 9_000))
    held = setup.decide()
    assert isinstance(held, Queued)
    setup.publish(held.waiting)
    for turn in (-1, 0, 1):
        again = setup.decide(CLAIM | {"ticket_id": held.waiting.request_id, "turn": turn})
        assert isinstance(again, Queued)
    setup.publish(Finished("full", NOW_US + 1))
    again = setup.decide(CLAIM | {"ticket_id": held.waiting.request_id})
    assert isinstance(again, Decision)
    assert again.placed.request_id == held.waiting.request_id


def test_what_is_promised_includes_the_wait_for_a_decode_worker() -> None:
    """The prefill takes 0.3 s; the decode worker has room when 3,696 of 9,000 tokens have ended: 4 s."""
    setup = Setup("prefill", "decode", level=ServiceLevel(ttft_slo_s=4.0))
    setup.publish(Placed("full", NOW_US, "w1", "r2", 0, 0, 9_000))
    shed = setup.decide()
    assert isinstance(shed, Shed)
    assert "ttft" in shed.detail
    assert isinstance(Setup("prefill", "decode", level=ServiceLevel(ttft_slo_s=4.0)).decide(), Decision)
