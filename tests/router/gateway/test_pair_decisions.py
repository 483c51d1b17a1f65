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
    Finished,
    FirstToken,
    Op,
    Pairing,
    Partners,
    Placed,
    Shed,
    Slots,
    WorkerPut,
    make_policy,
)
from router.gateway.decision import Claim, Decider, Decision, Hold, Order
from router.gateway.endpoints import Endpoint
from router.gateway.feedback import Feedback
from router.gateway.parsing import ParsedRequest
from router.gateway.queue_lanes import Lanes

NOW_US = 1_700_000_000_000_000
PATH = b"".join(number.to_bytes(8, "little") for number in range(1, 17))
TEXT = ParsedRequest(Endpoint.CHAT, "m", True, None, 1, False, 0, "", "", None, (PATH,), 16384, 0, 1, 1)
CONTEXT_TOKENS = 4096 + 100
CLAIM = Claim(NOW_US, "m|", "normal/")


class Setup:
    """One replica, r1, and workers that hold 10,000 tokens: two such prompts with their answers.

    Args:
        workers: ``ROLE`` or ``ROLE:PROTOCOL`` of each, in the order of their slots.
    """

    def __init__(self, *workers: str, policy: str = "expected_cost", **rules: Any) -> None:
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
        self.decider = Decider(
            fleet,
            make_policy(policy),
            Feedback(fleet, publish=self.shared.publish, replica="r1", bytes_per_token=4.0),
            replica="r1",
            next_attempt_id=iter(f"a{number}" for number in range(100)).__next__,
            block_tokens=256,
            block_bytes=1024,
            expected_output_tokens=100,
            order=Order(Admission(AdmissionRules(**rules), fleet), Lanes(lambda _: self.slots), 4.0),
        )

    def publish(self, *ops: Op) -> None:
        for op in ops:
            self.shared.publish(op)

    def decide(self, claim: Claim | None = CLAIM, **changes: Any) -> Decision | Hold | Shed:
        parsed = msgspec.structs.replace(TEXT, **changes)
        return self.decider.decide(
            parsed, FULL_ATTENTION, self.slots, NOW_US, 5.0, claim, pairing=self.pairing
        )

    def place(self, claim: Claim | None = CLAIM, **changes: Any) -> Decision:
        """Decide, and say so."""
        decision = self.decide(claim, **changes)
        assert isinstance(decision, Decision)
        self.publish(decision.placed)
        if decision.decode is not None:
            self.publish(decision.decode.placed)
        return decision


def paired(workers: tuple[str, ...]) -> tuple[Slots, Pairing]:
    """Who may begin, and who ends it."""
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
    assert isinstance(held, Hold)
    assert held.gated
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
        assert setup.place(claim=None).decode is not None


def test_the_slow_loop_counts_what_is_left_to_prefill_where_prefill_and_decode_are_apart() -> None:
    assert Setup("prefill", "decode").place().placed.home_uncached_tokens == 4096
    plain = Setup("plain")
    plain.pairing = None
    assert plain.place().placed.home_uncached_tokens == -1
