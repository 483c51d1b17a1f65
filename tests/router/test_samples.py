"""Samples of a scrape match the state of the process's parts."""

from math import inf

import pytest
from fakes.gateway import Bench, chat

from policies import Circuit, CircuitSet, FleetRules, LinkMeasured, LinkRules, OffloadPlan, Reported
from policies.disaggregation import NEVER_TOKENS
from router import metric_families as families
from router.metric_families import Family
from router.metrics import Sample
from router.samples import Samples, link_state

LINK = "far>here"


def told(samples: "list[Sample]") -> dict[tuple[Family, *tuple[str, ...]], float]:
    """Return values by family and labels; each appears once."""
    by_key = {(family, *labels): value for family, labels, value in samples}
    assert len(by_key) == len(samples)
    return by_key


def workers(bench: Bench) -> dict[tuple[Family, *tuple[str, ...]], float]:
    return told(list(Samples(bench.gateway, bench.pairs.offloading).workers()))


def test_a_worker_is_seen_with_what_it_has_been_given() -> None:
    bench = Bench(workers=2)
    names = ("w0:80", "w1:80")
    assert {workers(bench)[families.WORKER_REQUESTS, name] for name in names} == {0}

    bench.start(chat())
    seen = workers(bench)
    busy, idle = sorted(names, key=lambda name: -seen[families.WORKER_REQUESTS, name])
    assert (seen[families.WORKER_REQUESTS, busy], seen[families.WORKER_REQUESTS, idle]) == (1, 0)
    assert seen[families.WORKER_PREFILL, busy] > seen[families.WORKER_PREFILL, idle] == 0
    assert seen[families.WORKER_BACKLOG, busy] > seen[families.WORKER_BACKLOG, idle] == 0
    assert seen[families.WORKER_TOKENS, busy] > seen[families.WORKER_TOKENS, idle] == 0
    assert seen[families.WORKER_TARGET, idle] > 0
    assert (seen[families.WORKER_ROLE, busy, "plain", ""], seen[families.CIRCUIT_STATE, busy]) == (1, 0)
    states = [seen[families.WORKER_STATE, idle, state] for state in ("healthy", "unhealthy", "draining")]
    assert states == [1, 0, 0]
    assert seen[families.WORKER_ROOM, idle] == 1


def test_what_an_engine_reported_is_shown_with_its_age_and_nothing_if_it_did_not() -> None:
    bench = Bench(workers=2)
    bench.shared.publish(Reported("w0:80", bench.time.clock.now_us(), "r1", 3, -1, 4096))
    bench.time.advance(2)
    seen = workers(bench)
    assert seen[families.REPORT_AGE, "w0:80"] == pytest.approx(2.0, abs=1e-3)
    assert (seen[families.REPORTED_RUNNING, "w0:80"], seen[families.REPORTED_KV, "w0:80"]) == (3, 4096)
    unknown = (families.REPORT_AGE, families.REPORTED_RUNNING, families.WORKER_RUNNING_MAX)
    assert not [family for family in unknown if (family, "w1:80") in seen]
    assert (families.REPORTED_WAITING, "w0:80") not in seen


def test_links_are_seen_with_their_state_and_what_was_not_measured_is_left_open() -> None:
    bench = Bench(rules=FleetRules(site="here", links={LINK: LinkRules(8.0, rtt_ms=20.0, cap_ratio=0.5)}))
    samples = Samples(bench.gateway, bench.pairs.offloading)
    seen = told(list(samples.links()))
    assert (seen[families.LINK_CAPACITY, LINK], seen[families.LINK_RTT, LINK]) == (1e9, 0.02)
    assert (seen[families.LINK_RESERVED, LINK], seen[families.LINK_UTILISATION, LINK]) == (0, 0)
    assert seen[families.LINK_LOSS, LINK] == 0
    assert (families.LINK_GOODPUT, LINK) not in seen
    states = ("abundant", "scarce", "down", "probing")
    assert [seen[families.LINK_STATE, LINK, state] for state in states] == [1, 0, 0, 0]
    assert link_state(bench.pairs.offloading, LINK, bench.time.clock.now_us()) == "abundant"


def test_a_measured_link_is_seen_with_its_goodput_and_its_loss() -> None:
    bench = Bench(rules=FleetRules(site="here", links={LINK: LinkRules(8.0, rtt_ms=20.0)}))
    bench.shared.publish(LinkMeasured(LINK, bench.time.clock.now_us(), "r1", 4e8, 0.05, 0.25))
    seen = told(list(Samples(bench.gateway, bench.pairs.offloading).links()))
    assert (seen[families.LINK_GOODPUT, LINK], seen[families.LINK_RTT, LINK]) == (4e8, 0.05)
    assert seen[families.LINK_LOSS, LINK] == 0.25


@pytest.mark.parametrize(("circuit", "shown"), [(Circuit.OPEN, 2), (Circuit.HALF_OPEN, 1)])
def test_the_circuit_of_a_worker_is_seen(circuit: Circuit, shown: int) -> None:
    bench = Bench()
    registry = bench.gateway.registry
    local = next(iter(registry.all()))
    now_us = bench.time.clock.now_us()
    bench.shared.publish(CircuitSet(local.worker.worker_id, now_us, "r9", circuit, now_us + 10**7))
    assert registry.circuits.state(local) is circuit
    assert workers(bench)[families.CIRCUIT_STATE, local.worker.worker_id] == shown


def test_the_plan_says_who_should_do_what_and_nothing_while_there_is_none() -> None:
    bench = Bench()
    samples = Samples(bench.gateway, bench.pairs.offloading)
    assert not list(samples.plan())

    bench.shared.publish(OffloadPlan(1, "r1", 5000, 3, 1, {}, 0.25, ""))
    assert told(list(samples.plan())) == {
        (families.OFFLOAD_THRESHOLD,): 5000,
        (families.ROLE_WORKERS_BEST, "prefill"): 3,
        (families.ROLE_WORKERS_BEST, "decode"): 1,
        (families.ROLE_GAIN,): 0.25,
    }

    bench.shared.publish(OffloadPlan(2, "r1", NEVER_TOKENS, 0, 0, {}, 0.0, ""))
    assert told(list(samples.plan())) == {(families.OFFLOAD_THRESHOLD,): inf, (families.ROLE_GAIN,): 0}


def test_a_threshold_that_was_set_by_hand_needs_no_plan() -> None:
    bench = Bench(offload={"threshold_tokens": 700})
    samples = Samples(bench.gateway, bench.pairs.offloading)
    assert told(list(samples.plan())) == {(families.OFFLOAD_THRESHOLD,): 700, (families.ROLE_GAIN,): 0}
