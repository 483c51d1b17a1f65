"""What a scrape reads is what the parts of the process know."""

from math import inf

import pytest
from fakes.gateway import Bench, chat

from policies import NEVER_TOKENS, FleetRules, LinkRules, OffloadPlan, Reported
from router.samples import Samples

LINK = "far>here"


def test_a_worker_is_seen_with_what_it_has_been_given() -> None:
    bench = Bench(workers=2)
    before = {sample.worker_id: sample for sample in Samples(bench.gateway).workers()}
    assert {sample.inflight_requests for sample in before.values()} == {0}

    bench.start(chat())
    busy, idle = sorted(Samples(bench.gateway).workers(), key=lambda sample: -sample.inflight_requests)
    assert (busy.inflight_requests, idle.inflight_requests) == (1, 0)
    assert busy.prefill_tokens > idle.prefill_tokens == 0
    assert busy.backlog_s > idle.backlog_s == 0
    assert (busy.role, busy.circuit) == ("plain", "closed")


def test_what_an_engine_reported_is_shown_with_its_age_and_nothing_if_it_did_not() -> None:
    bench = Bench(workers=2)
    bench.shared.publish(Reported("w0:80", bench.time.clock.now_us(), "r1", 3, 2, 4096))
    bench.time.advance(2)
    told, silent = Samples(bench.gateway).workers()
    assert told.report_age_s == pytest.approx(2.0, abs=1e-3)
    assert (told.reported_running, told.reported_waiting, told.reported_kv_tokens) == (3, 2, 4096)
    assert (silent.report_age_s, silent.reported_running) == (None, -1)
    assert silent.running_max is None


def test_links_are_seen_with_their_state_and_what_was_not_measured_is_left_open() -> None:
    bench = Bench(rules=FleetRules(site="here", links={LINK: LinkRules(1e9, rtt_s=0.02, cap_ratio=0.5)}))
    samples = Samples(bench.gateway)
    (link,) = samples.links()
    assert (link.link, link.capacity_bytes_per_s, link.cap_bytes_per_s) == (LINK, 1e9, 5e8)
    assert (link.rtt_s, link.goodput_bytes_per_s, link.reserved_bytes_per_s) == (0.02, None, 0.0)
    assert link.state == samples.link_state(LINK, bench.time.clock.now_us()) == "abundant"


def test_the_plan_says_who_should_do_what_and_nothing_while_there_is_none() -> None:
    bench = Bench()
    samples = Samples(bench.gateway)
    assert samples.plan() is None

    bench.shared.publish(OffloadPlan(1, "r1", 5000, 3, 1, {}, 0.25, ""))
    plan = samples.plan()
    assert plan is not None
    assert (plan.threshold_tokens, plan.roles, plan.gain_ratio) == (5000, {"prefill": 3, "decode": 1}, 0.25)

    bench.shared.publish(OffloadPlan(2, "r1", NEVER_TOKENS, 0, 0, {}, 0.0, ""))
    plan = samples.plan()
    assert plan is not None
    assert (plan.threshold_tokens, plan.roles) == (inf, {})


def test_a_threshold_that_was_set_by_hand_needs_no_plan() -> None:
    plan = Samples(Bench(offload={"threshold_tokens": 700}).gateway).plan()
    assert plan is not None
    assert (plan.threshold_tokens, plan.roles) == (700, {})
