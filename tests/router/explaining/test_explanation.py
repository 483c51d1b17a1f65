"""Explanations match the placements that follow, and change nothing."""

from itertools import pairwise
from math import inf
from typing import Any

import pytest
from fakes.gateway import Bench
from fakes.handover import PairBench
from fakes.rehearsals import Real, explained, parsed_text, said
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from policies import (
    POLICIES,
    Circuit,
    CircuitSet,
    Fitted,
    FleetRules,
    KvBytes,
    LinkRules,
    Placed,
    Policy,
    Shipping,
    Waiting,
    make_policy,
)
from router.explaining.explanation import Explanation
from router.explaining.non_candidates import Absence

LINK = "far>here"


def as_done(found: Explanation) -> tuple[str, ...]:
    """The same of an explanation as `said` of what was done."""
    reason = found.verdict.reason if found.verdict.word != "wait" else ""
    return found.verdict.word, found.verdict.worker_id, found.verdict.decode_worker_id, reason


def check(bench: Bench, found: Explanation, policy: Policy) -> None:
    """The explained prices order the candidates as the policy does; each worker appears once."""
    shown = found.candidates
    ranks = [candidate.rank for candidate in shown]
    assert ranks == sorted(set(ranks))
    by_link: dict[str, list[float]] = {}
    for candidate in shown:
        by_link.setdefault(candidate.link, []).append(candidate.cost)
        assert 0 <= candidate.safe_tokens <= candidate.matched_tokens + candidate.fetched_tokens
        assert candidate.queue_s >= max(candidate.backlog_s, candidate.fetch_s) - 1e-9
        if policy.price is not None and candidate.cost < inf:
            parts = candidate.queue_s + candidate.work_s + candidate.later_s
            assert candidate.cost == pytest.approx(parts, rel=1e-9)
    for costs in by_link.values():
        assert all(one <= other * (1 + 2e-9) + 1e-300 for one, other in pairwise(costs) if other >= 0)
    chosen = [candidate.worker_id for candidate in shown if candidate.chosen]
    assert chosen == ([] if found.verdict.preferred is None else [found.verdict.preferred])
    assert all(candidate.chosen != bool(candidate.lost_because) for candidate in shown)
    named = [candidate.worker_id for candidate in shown] + [other.worker_id for other in found.bystanders]
    assert len(named) == len(set(named))
    hidden = found.omitted + sum(found.bystanders_omitted.values())
    assert len(named) + hidden == len(bench.registry.all())
    assert found.verdict.why.endswith(".")
    assert Absence.LEFT_OUT not in {other.absence for other in found.bystanders}


BLOCKS = st.lists(st.sampled_from((1, 2, 3)), max_size=6).map(tuple)

WORKERS = st.fixed_dictionaries(
    {
        "load": st.lists(st.tuples(BLOCKS, st.sampled_from((1_000, 200_000, 3_000_000))), max_size=3),
        "state": st.sampled_from(("well",) * 5 + ("draining", "unhealthy", "ejected")),
        "bucket": st.sampled_from(("", "", "0", "1")),
    }
)


def furnish(bench: Bench, worker_id: str, worker: dict[str, Any], number: int) -> None:
    """Give a worker its load and its state."""
    now_us = bench.time.clock.now_us()
    for index, (blocks, service_us) in enumerate(worker["load"]):
        path = parsed_text(blocks).paths[0]
        request_id = f"load-{number}-{index}"
        bench.shared.publish(
            Placed(request_id, now_us - 1000, worker_id, "r2", service_us, 500, 2000, (path,))
        )
    local = bench.local(worker_id)
    if worker["state"] == "draining":
        bench.registry.change(worker_id, draining=True)
    elif worker["state"] == "unhealthy":
        for _ in range(3):
            bench.registry.probed(local, ok=False, refused=False, detail="timed out")
    elif worker["state"] == "ejected":
        bench.shared.publish(CircuitSet(worker_id, now_us, "r2", Circuit.OPEN, now_us + 5_000_000))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=15)
@given(
    workers=st.lists(WORKERS, min_size=1, max_size=20),
    blocks=BLOCKS,
    waiting=st.booleans(),
    limit=st.sampled_from((1, 3, 50)),
)
def test_what_is_explained_is_what_is_then_done(
    name: str, workers: list[dict[str, Any]], blocks: tuple[int, ...], waiting: bool, limit: int
) -> None:
    """Beyond 16 candidates prices are columns, below they are numbers."""
    bench = Bench(workers=0)
    policy = make_policy(name)
    decider = bench.gateway.placing.decider
    decider.use(replace(decider.rules, policy=policy, prefill_policy=None))
    for number, worker in enumerate(workers):
        labels = {"bucket": worker["bucket"]} if worker["bucket"] else {}
        bench.registry.add(f"http://w{number}:80", labels=labels)
        bench.registry.probed(bench.local(f"w{number}:80"), ok=True, refused=False, detail="")
        furnish(bench, f"w{number}:80", worker, number)
    if waiting:
        now_us = bench.time.clock.now_us()
        bench.shared.publish(
            Waiting("t", now_us, "r2", now_us - 1_000_000, now_us - 900_000, "m|", "", "normal/", 1000, 9, 9)
        )
    parsed = parsed_text(blocks)

    found = explained(bench, parsed, limit)

    check(bench, found, policy)
    assert as_done(found) == said(Real(bench, parsed).outcome())


@pytest.mark.parametrize("protocol", ["sglang", "nixl"])
@pytest.mark.parametrize("name", ["expected_cost", "least_load", "prefix_hash"])
@settings(max_examples=15)
@given(
    prefill=st.lists(WORKERS, min_size=1, max_size=3),
    far=st.lists(WORKERS, max_size=2),
    decode=st.lists(WORKERS, min_size=1, max_size=3),
    blocks=st.lists(st.sampled_from((1, 2, 3)), max_size=40).map(tuple),
    shipping=st.booleans(),
)
def test_with_pairs_and_links_too(
    protocol: str,
    name: str,
    prefill: list[dict[str, Any]],
    far: list[dict[str, Any]],
    decode: list[dict[str, Any]],
    blocks: tuple[int, ...],
    shipping: bool,
) -> None:
    rules = FleetRules(
        site="here",
        links={LINK: LinkRules(8.0, rtt_ms=20.0, cap_ratio=1.0)},
        kv_bytes={"*": KvBytes(100_000.0)},
    )
    bench = PairBench(0, 0, rules=rules)
    policy = make_policy(name)
    decider = bench.gateway.placing.decider
    decider.use(replace(decider.rules, policy=policy, prefill_policy=None))
    for letter, role, workers, labels in (
        ("p", "prefill", prefill, {}),
        ("f", "prefill", far, {"site": "far", "worker_class": "fast"}),
        ("d", "decode", decode, {}),
    ):
        for number, worker in enumerate(workers):
            worker_id = f"{letter}{number}:80"
            bench.add_half(worker_id, role, protocol, **labels)
            furnish(bench, worker_id, worker, hash(letter) % 1000 * 10 + number)
    now_us = bench.time.clock.now_us()
    bench.shared.publish(Fitted("default", now_us, "r2", 0.0, 1e-3, 1e12))
    bench.shared.publish(Fitted("fast", now_us, "r2", 0.0, 0.5e-3, 1e12))
    if shipping:
        bench.shared.publish(Shipping("s", now_us, "r2", LINK, 8 * 10**9, now_us, now_us + 8_000_000))
    parsed = parsed_text(blocks)

    found = explained(bench, parsed)

    check(bench, found, policy)
    assert as_done(found) == said(Real(bench, parsed).outcome())
    if found.verdict.decode_worker_id:
        assert [one.worker_id for one in found.decoders if one.chosen] == [found.verdict.decode_worker_id]
