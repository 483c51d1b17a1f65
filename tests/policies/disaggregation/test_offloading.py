"""Requests that may be prefilled in another site: decision, reservation, pacing and reports."""

from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest
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
    Feedback,
    Finished,
    Fitted,
    FleetRules,
    KvBytes,
    Lanes,
    LinkMeasured,
    LinkRules,
    OffloadPlan,
    OpLog,
    Pairing,
    Partners,
    Queued,
    QueueOrder,
    Shed,
    Shipped,
    Shipping,
    Waiting,
    WorkerPut,
    make_policy,
)
from policies.disaggregation import Offload, Offloading, OffloadReason, OffloadRules, PairDecider
from policies.estimates.length_histogram import row_of
from policies.fleet.pairing import KEEPS_PREFIXES_LABEL as KEEPS

NOW_US = 1_700_000_000_000_000
SECOND = 1_000_000
LINK = "far>here"
PATH = b"".join(number.to_bytes(8, "little") for number in range(1, 17))
TEXT = BareRequest("m", (PATH,), 16384, 1, 1)
CLAIM: dict[str, Any] = {"arrived_us": NOW_US, "flow": "normal/"}
GB = 1_000_000_000
TOKENS = 4096


class Setup:
    """One replica, r1, in the site "here"; a token takes 1 ms of prefill, 0.5 ms in other sites, and 100 KB.

    Args:
        workers: ``ROLE:SITE`` of each, in the order of their slots.
    """

    def __init__(
        self,
        *workers: str,
        protocol: str = "sglang",
        gigabytes_per_s: float | None = 1.0,
        token_bytes: float = 100_000.0,
        threshold_tokens: int = 1_000,
        remote: bool = True,
        queue: bool = True,
    ) -> None:
        links = (
            {LINK: LinkRules(gigabytes_per_s * 8.0, rtt_ms=20.0, cap_ratio=1.0)} if gigabytes_per_s else {}
        )
        kv_bytes = {"*": KvBytes(token_bytes)}
        self.shared = FakeShared(FleetRules(site="here", links=links, kv_bytes=kv_bytes))
        self.publish = self.shared.publish
        for number, worker in enumerate(workers):
            role, _, site = worker.partition(":")
            labels = {"site": site, "worker_class": "fast"} if site else {}
            self.publish(WorkerPut(f"w{number}", 1, "r1", f"http://w{number}", role, False, 100_000, labels))
        self.publish(Fitted("default", 1, "r1", 0.0, 1e-3, 1e12))
        self.publish(Fitted("fast", 1, "r1", 0.0, 0.5e-3, 1e12))
        roles = [worker.partition(":")[0] for worker in workers]
        begin = [slot for slot, role in enumerate(roles) if role != "decode"]
        decode = [slot for slot, role in enumerate(roles) if role == "decode"]
        groups = [0 if roles[slot] == "prefill" else ALONE for slot in begin]
        self.slots = np.array(begin)
        self.pairing = Pairing(self.slots, np.array(groups), (Partners(protocol, np.array(decode)),))
        fleet = self.fleet = self.shared.fleet
        rules = OffloadRules(disable_remote_prefill=not remote, threshold_tokens=threshold_tokens)
        self.offloading = Offloading(fleet, Offload(fleet.links, rules), replica="r1")
        order = QueueOrder(Admission(AdmissionRules(), fleet), Lanes(lambda _: self.slots), 4.0)
        self.decider = PairDecider(
            DeciderParts(
                fleet,
                Feedback(fleet, OpLog("r1", self.publish, lambda: NOW_US), bytes_per_token=4.0),
                "r1",
                map("a{}".format, count()).__next__,
            ),
            DecisionRules(make_policy("min_ttft"), 256, 1024, 100, order=order if queue else None),
            offloading=self.offloading,
        )

    def decide(
        self, entry: dict[str, Any] | None = CLAIM, now_us: int = NOW_US, **changes: Any
    ) -> Decision | Queued | Shed:
        parsed = msgspec.structs.replace(TEXT, **changes)
        return self.decider.decide(
            DecisionInput(
                parsed, FULL_ATTENTION, self.slots, now_us, 5.0, pairing=self.pairing, **entry or {}
            )
        )

    def place(self, entry: dict[str, Any] | None = CLAIM, now_us: int = NOW_US, **changes: Any) -> Decision:
        """Decide, and say so."""
        decision = self.decide(entry, now_us, **changes)
        assert isinstance(decision, Decision)
        self.publish(decision.placed)
        if decision.decode is not None:
            self.publish(decision.decode.placed)
        if decision.shipping is not None:
            self.publish(decision.shipping)
        return decision

    def full(self, s: float, request_id: str = "full") -> None:
        """Another replica's transfer fills the link."""
        self.publish(Shipping(request_id, NOW_US, "r2", LINK, round(s * GB), NOW_US, NOW_US + round(s * 1e6)))


SITES = ("prefill", "prefill:far", "decode")


def reason(decision: Decision) -> OffloadReason:
    assert decision.offload is not None
    return decision.offload.reason


def test_a_long_prompt_is_prefilled_far_away_and_its_kv_reserves_the_link() -> None:
    """4,096 tokens: 2.048 s of prefill there, during which 0.41 GB leave."""
    decision = Setup(*SITES).place()
    assert (decision.attempt.worker_id, reason(decision)) == ("w1", OffloadReason.ABOVE_THRESHOLD)
    assert decision.decode is not None
    assert decision.decode.attempt.worker_id == "w2"
    end_us = NOW_US + TOKENS * 500
    assert decision.shipping == Shipping(
        decision.decode.attempt.request_id, NOW_US, "r1", LINK, TOKENS * 100_000, NOW_US, end_us
    )


def test_a_short_prompt_stays() -> None:
    setup = Setup(*SITES, threshold_tokens=TOKENS)
    decision = setup.place()
    assert (decision.attempt.worker_id, reason(decision)) == ("w0", OffloadReason.BELOW_THRESHOLD)
    assert decision.shipping is None
    assert not setup.fleet.links.transfers


def test_the_threshold_is_what_the_slow_loop_says_if_nobody_has_set_one() -> None:
    setup = Setup(*SITES, threshold_tokens=0)
    assert setup.offloading.threshold_tokens is None
    assert reason(setup.place()) is OffloadReason.SOONER_REMOTE
    setup.publish(OffloadPlan(1, "r2"))
    assert setup.offloading.threshold_tokens is None
    setup.publish(OffloadPlan(2, "r2", threshold_tokens=5_000))
    assert setup.offloading.threshold_tokens == 5_000
    assert Setup(*SITES).offloading.threshold_tokens == 1_000


def test_what_a_decode_worker_holds_does_not_cross_where_it_is_kept() -> None:
    """The second time half of the prompt is at a worker that keeps it; SGLang's do with the label."""
    half: dict[str, Any] = {"paths": (PATH[:64],), "prompt_bytes": 8192, "key": 2}
    bytes_crossed = {}
    for protocol, label in (("nixl", ""), ("sglang", ""), ("sglang", "true")):
        setup = Setup("prefill:far", "decode", protocol=protocol)
        setup.publish(WorkerPut("w1", 2, "r1", "http://w1", "decode", False, 100_000, {KEEPS: label}))
        setup.place(**half)
        held = setup.fleet.tree.held_blocks(1)
        second = setup.place(now_us=NOW_US + 60 * SECOND)
        assert second.shipping is not None
        bytes_crossed[protocol, label] = second.shipping.kv_bytes, held
    assert bytes_crossed == {
        ("nixl", ""): (TOKENS * 50_000, 8),
        ("sglang", ""): (TOKENS * 100_000, 0),
        ("sglang", "true"): (TOKENS * 50_000, 8),
    }


def test_what_is_read_when_the_prefill_is_over_reserves_the_link_from_then() -> None:
    decision = Setup(*SITES, protocol="nixl").place()
    assert decision.shipping is not None
    assert decision.shipping.start_us == NOW_US + TOKENS * 500
    assert decision.shipping.end_us == pytest.approx(decision.shipping.start_us + TOKENS * 100, abs=2)


def test_what_does_not_fit_waits_for_the_link_and_goes_when_it_is_free() -> None:
    """NIXL's KV would need all of the link from when the prefill is over; until 1.5 s later it is taken."""
    setup = Setup("prefill", "prefill:far", "decode", protocol="nixl")
    states = setup.offloading.offload.states
    states.observe(LINK, states.signals(LINK, 0.0, NOW_US))
    setup.full(3.0)
    queued = setup.decide()
    assert isinstance(queued, Queued)
    assert (queued.waiting.worker, queued.waits_for_decode) == ("w1", False)
    assert not setup.offloading.counts
    setup.publish(queued.waiting)
    turn = CLAIM | {"ticket_id": queued.waiting.request_id, "turn": 1}
    again = setup.decide(turn)
    assert isinstance(again, Queued)
    assert again.waiting.worker == "w1"
    setup.publish(Shipped("full", NOW_US))
    decision = setup.place(turn)
    assert decision.attempt.worker_id == "w1"
    assert decision.attempt.request_id == queued.waiting.request_id
    assert setup.offloading.counts == {OffloadReason.ABOVE_THRESHOLD: 1}


@pytest.mark.parametrize("replica", ["r1", "r2"])
def test_the_first_of_those_who_wait_for_a_link_goes_first(replica: str) -> None:
    """Its room is left to the better key, for any worker behind the link; to another replica for a time."""
    setup = Setup(*SITES)
    first = Waiting("first", NOW_US, replica, 0, 0, "m|@far>here", "w0", "normal/", 1, 1, 1, LINK)
    setup.publish(first)
    queued = setup.decide()
    assert isinstance(queued, Queued)
    assert (queued.waiting.link, queued.waits_for_link) == (LINK, True)
    for ms in (100, 200):
        assert isinstance(setup.decide(now_us=NOW_US + ms * 1_000), Queued)
    assert isinstance(setup.decide(now_us=NOW_US + 300_000), Decision) == (replica == "r2")
    setup.publish(Finished("first", NOW_US))
    assert isinstance(setup.decide(), Decision)


def test_the_room_of_a_link_is_left_unused_from_when_it_is_left_to_a_request_without_a_pause() -> None:
    """250 ms of grace; the question alone does not start them, and a longer pause restarts them."""
    setup = Setup(*SITES)
    setup.publish(Waiting("first", NOW_US, "r2", 0, 0, "m|@far>here", "w0", "normal/", 1, 1, 1, LINK))
    best, offloading = setup.fleet.tickets.first_for_link(LINK), setup.offloading
    assert best is not None
    assert not offloading.left_unused(LINK, best, NOW_US + SECOND)
    for ms, unused in ((0, False), (200, False), (300, True), (600, False)):
        now_us = NOW_US + ms * 1_000
        offloading.leave(LINK, best, now_us)
        assert [offloading.left_unused(LINK, best, now_us) for _ in range(2)] == [unused] * 2


def test_who_never_waits_goes_at_once_and_reserves_what_is_there_then() -> None:
    setup = Setup("prefill", "prefill:far", "decode", protocol="nixl", queue=False)
    states = setup.offloading.offload.states
    states.observe(LINK, states.signals(LINK, 0.0, NOW_US))
    setup.full(3.0)
    decision = setup.place()
    assert decision.attempt.worker_id == "w1"
    assert decision.shipping is not None
    assert decision.shipping.start_us == NOW_US + TOKENS * 500


def test_what_would_wait_longer_than_a_local_prefill_takes_is_local() -> None:
    setup = Setup(*SITES, protocol="nixl")
    setup.full(30.0)
    decision = setup.place()
    assert (decision.attempt.worker_id, reason(decision)) == ("w0", OffloadReason.LINK_FULL)


def test_nothing_crosses_a_link_that_is_down() -> None:
    setup = Setup(*SITES)
    setup.publish(LinkMeasured(LINK, NOW_US, "r2", 0.0, loss_ratio=0.8))
    decision = setup.place()
    assert (decision.attempt.worker_id, reason(decision)) == ("w0", OffloadReason.LINK_DOWN)


def test_who_has_failed_before_is_prefilled_locally() -> None:
    decision = Setup(*SITES).place(CLAIM | {"again": True})
    assert (decision.attempt.worker_id, reason(decision)) == ("w0", OffloadReason.FAILED_REMOTE)


def test_kv_that_nobody_has_weighed_stays() -> None:
    decision = Setup(*SITES, token_bytes=0.0).place()
    assert (decision.attempt.worker_id, reason(decision)) == ("w0", OffloadReason.UNKNOWN_KV)
    assert isinstance(Setup("prefill:far", "decode", token_bytes=0.0).decide(), Shed)


def test_where_nobody_prefills_locally_it_is_done_elsewhere() -> None:
    decision = Setup("prefill:far", "decode", threshold_tokens=100_000).place()
    assert (decision.attempt.worker_id, reason(decision)) == ("w0", OffloadReason.NO_LOCAL)


def test_sites_without_a_link_never_share_a_request() -> None:
    setup = Setup("prefill", "prefill:island", "decode")
    decision = setup.place()
    assert (decision.attempt.worker_id, decision.offload) == ("w0", None)
    assert isinstance(Setup("prefill:island", "decode").decide(), Shed)


def test_without_links_sites_mean_nothing() -> None:
    decision = Setup("prefill", "prefill:far", "decode", gigabytes_per_s=None).place()
    assert (decision.attempt.worker_id, decision.offload, decision.shipping) == ("w1", None, None)


def test_remote_prefill_can_be_switched_off() -> None:
    decision = Setup(*SITES, remote=False).place()
    assert (decision.attempt.worker_id, decision.offload) == ("w0", None)
    assert isinstance(Setup("prefill:far", "decode", remote=False).decide(), Shed)


def test_a_site_with_its_own_decode_workers_is_as_local_as_any() -> None:
    """The far prefill worker hands over to the far decode worker, and nothing crosses."""
    decision = Setup("prefill", "prefill:far", "decode", "decode:far").place()
    assert decision.decode is not None
    assert (decision.attempt.worker_id, decision.decode.attempt.worker_id) == ("w1", "w3")
    assert (decision.offload, decision.shipping) == (None, None)


def test_verdicts_are_counted_and_the_newest_remembered() -> None:
    setup = Setup(*SITES)
    for number in range(70):
        decision = setup.place(None, key=number, paths=(), prompt_bytes=4 * (400 if number % 2 else 4_000))
        setup.publish(Finished(decision.attempt.request_id, NOW_US))
        assert decision.decode is not None
        setup.publish(Finished(decision.decode.attempt.request_id, NOW_US))
        told = setup.offloading.latest[-1]
        assert (told.request_id, told.verdict) == (decision.attempt.request_id, decision.offload)
    assert setup.offloading.counts == {
        OffloadReason.ABOVE_THRESHOLD: 35,
        OffloadReason.BELOW_THRESHOLD: 35,
    }
    assert len(setup.offloading.latest) == 64


def test_the_slow_loop_counts_what_the_rule_compares_with_its_threshold() -> None:
    """The second time the far worker holds the prompt, and the one at home does not."""
    setup = Setup(*SITES)
    for number in range(2):
        decision = setup.place(None, now_us=NOW_US + number * SECOND)
        assert decision.attempt.worker_id == "w1"
        assert decision.offload is not None
        counted = decision.placed.home_uncached_tokens
        assert counted == decision.offload.judged_tokens
        assert counted == (decision.placed.uncached_tokens if number else TOKENS)
        assert decision.decode is not None
        assert decision.decode.placed.home_uncached_tokens == -1
    assert decision.offload.uncached_local == TOKENS > counted
    requests, _, _ = setup.fleet.uncached_lengths.sums(NOW_US)
    assert requests[row_of(TOKENS)] == requests[row_of(counted)] == 1
    away = Setup("prefill:far", "decode").place()
    assert away.placed.home_uncached_tokens == away.placed.uncached_tokens == TOKENS


def patient(**changes: Any) -> Setup:
    """No queue ever surges: the test sees the help of idle workers alone."""
    setup = Setup(*SITES)
    offload = setup.offloading.offload
    offload.rules = replace(offload.rules, surges=False, **changes)
    return setup


def held(setup: Setup, entry: dict[str, Any] = CLAIM, now_us: int = NOW_US, **changes: Any) -> Queued:
    decided = setup.decide(entry, now_us, **changes)
    assert isinstance(decided, Queued)
    return decided


SHORT = {"prompt_bytes": 3200, "key": 2}
"""800 tokens: 0.8 s here, 0.4 s far away."""


def long(number: int) -> dict[str, Any]:
    """A prompt of 4,096 tokens that shares nothing: 4.096 s here, 2.048 s far away."""
    blocks = range(100 * number + 100, 100 * number + 116)
    return {"paths": (b"".join(block.to_bytes(8, "little") for block in blocks),), "key": number}


def test_what_waits_for_one_side_waits_apart() -> None:
    setup = patient()
    setup.place()
    assert held(setup, **long(1)).waiting.lane == "m|@far>here"
    setup.place(**SHORT)
    assert held(setup, **SHORT).waiting.lane == "m|@"


def test_an_idle_worker_here_helps_who_would_wait_longer_for_one_far_away() -> None:
    """Far away: the rest of 2.048 s, and as much for itself; here 4.096 s."""
    setup = patient()
    setup.place()
    offered = CLAIM | {"turn": 0}
    helped = setup.decide(offered, **long(1))
    assert isinstance(helped, Decision)
    assert (helped.attempt.worker_id, reason(helped), helped.shipping) == (
        "w0",
        OffloadReason.REMOTE_BUSY,
        None,
    )
    held(setup, offered, NOW_US + SECOND, **long(1))
    alone = patient(helps=False)
    alone.place()
    held(alone, offered, **long(1))


def test_an_idle_worker_far_away_helps_while_bandwidth_is_abundant() -> None:
    setup = patient()
    setup.place(**SHORT)
    offered = CLAIM | {"turn": 1}
    helped = setup.decide(offered, **SHORT)
    assert isinstance(helped, Decision)
    assert (helped.attempt.worker_id, reason(helped)) == ("w1", OffloadReason.LOCAL_BUSY)
    assert helped.shipping is not None
    scarce = patient()
    scarce.full(0.9)
    scarce.place(**SHORT)
    held(scarce, offered, **SHORT)


def test_what_waits_on_a_side_is_part_of_its_price() -> None:
    """Far away 1 s is left of the first, and one waits that takes 2.048 s: here is sooner by a second."""
    setup = Setup(*SITES)
    setup.place()
    later_us = NOW_US + SECOND
    waiting = held(setup, now_us=later_us, **long(1)).waiting
    assert waiting.lane == "m|@far>here"
    setup.publish(waiting)
    entry = CLAIM | {"arrived_us": later_us}
    assert reason(setup.place(entry, later_us, **long(2))) is OffloadReason.REMOTE_BUSY
