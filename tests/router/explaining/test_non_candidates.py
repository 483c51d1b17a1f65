"""Why a worker is no candidate."""

from dataclasses import replace

import pytest
from fakes.gateway import Bench
from fakes.handover import PairBench
from fakes.rehearsals import explained, parsed_text

from policies import Circuit, CircuitSet, make_policy
from router.engines import Description
from router.explaining.explanation import explain
from router.explaining.non_candidates import Absence
from router.explaining.rehearsal import rehearse
from router.fleet import HealthRules
from router.fleet.engine_info import ServedModel
from router.gateway.salting import OVERLOOKED_BY
from router.tenant import Tenant

PROMPT = parsed_text((1, 2))


def absent(bench: Bench) -> dict[str, Absence]:
    return {each.worker_id: each.absence for each in explained(bench, PROMPT).bystanders}


def test_candidates_are_no_bystanders() -> None:
    assert absent(Bench(workers=2)) == {}


def test_each_reason_is_said() -> None:
    bench = Bench(workers=6)
    local, registry, now_us = bench.local, bench.registry, bench.time.clock.now_us()
    registry.change("w0:80", draining=True)
    for _ in range(3):
        registry.probed(local("w1:80"), ok=False, refused=False, detail="timed out")
    registry.described(local("w2:80"), (ServedModel("other"),), Description("vllm", 0))
    bench.shared.publish(CircuitSet("w3:80", now_us, "r2", Circuit.OPEN, now_us + 5_000_000))
    registry.add("http://new:80")
    registry.add("http://eyes:80", role="encode")
    registry.described(local("w4:80"), None, Description("sglang", role="decode"))
    found = {each.worker_id: each for each in explained(bench, PROMPT).bystanders}

    assert {worker: each.absence for worker, each in found.items()} == {
        "w0:80": Absence.DRAINING,
        "w1:80": Absence.UNHEALTHY,
        "w2:80": Absence.OTHER_MODEL,
        "w3:80": Absence.EJECTED,
        "w4:80": Absence.MISNAMED,
        "new:80": Absence.STARTING,
        "eyes:80": Absence.ENCODER,
    }
    assert "timed out" in found["w1:80"].detail
    assert found["w2:80"].detail == "it serves other"
    assert found["w3:80"].detail == "its circuit is open; it is probed in 5.0 s"
    assert "--disaggregation-mode decode" in found["w4:80"].detail


def test_a_worker_that_is_too_small_for_a_length_bucket_says_so() -> None:
    bench = Bench(workers=0)
    for worker, bucket, capacity in (("small", "0", 10_000), ("large", "1", 300_000)):
        bench.registry.add(f"http://{worker}:80", labels={"bucket": bucket}, capacity_tokens=capacity)
        bench.registry.probed(bench.local(f"{worker}:80"), ok=True, refused=False, detail="")
    found = explained(bench, parsed_text((1,), prompt_bytes=4 * 100_000))
    assert [(each.worker_id, each.absence) for each in found.bystanders] == [("small:80", Absence.TOO_LONG)]


def test_a_worker_whose_engine_would_refuse_a_prompt_says_what_it_takes() -> None:
    bench = Bench(workers=0)
    for worker, length in (("small", 1024), ("large", 300_000)):
        bench.registry.add(f"http://{worker}:80")
        local = bench.local(f"{worker}:80")
        bench.registry.probed(local, ok=True, refused=False, detail="")
        bench.registry.described(local, (ServedModel("m", length),), Description("", 0))
    (small,) = explained(bench, parsed_text((1,), prompt_bytes=4 * 100_000)).bystanders
    assert (small.worker_id, small.absence) == ("small:80", Absence.TOO_LONG)
    assert small.detail == "its engine takes 1024 tokens"


def test_a_visitor_from_another_bucket_that_is_not_worth_it_is_none_to_a_policy_that_counts_otherwise() -> (
    None
):
    bench = Bench(workers=0)
    for worker, bucket in (("home", "0"), ("away", "1")):
        bench.registry.add(f"http://{worker}:80", labels={"bucket": bucket})
        bench.registry.probed(bench.local(f"{worker}:80"), ok=True, refused=False, detail="")
    found = explained(bench, PROMPT, policy=make_policy("least_load"))
    assert [(each.worker_id, each.absence) for each in found.bystanders] == [
        ("away:80", Absence.OTHER_BUCKET)
    ]


def test_one_that_has_just_returned_is_not_for_every_prompt() -> None:
    bench = Bench(workers=2)
    bench.registry.rules = HealthRules(slow_start_s=30)
    bench.shared.fleet.returns(bench.local("w0:80").worker.slot, bench.time.clock.now_us())
    prompts = [parsed_text((1,), key=number * 0x9E3779B97F4A7C15 % 2**64) for number in range(20)]
    found = [explained(bench, prompt) for prompt in prompts]
    away = [each.bystanders[0] for each in found if each.bystanders]
    assert {each.absence for each in away} == {Absence.SLOW_START}
    assert "takes 10% of the prompts" in away[0].detail


def test_a_cache_that_is_to_be_kept_apart_leaves_engines_out_that_cannot() -> None:
    bench = Bench(workers=2)
    bench.registry.described(bench.local("w0:80"), None, Description("vllm", 0))
    bench.registry.described(bench.local("w1:80"), None, Description("sglang", 0))
    endpoint = next(iter(OVERLOOKED_BY))
    rehearsed = rehearse(
        bench.gateway, parsed_text((1,), endpoint=endpoint), replace(Tenant("t"), salt="s" * 43)
    )
    found = explain(bench.gateway, rehearsed)
    assert {each.absence for each in found.bystanders} == {Absence.NOT_KEPT_APART}


def test_pairs_say_who_is_missing_and_who_only_decodes() -> None:
    bench = PairBench(1, 1)
    assert absent(bench) == {"d0:80": Absence.DECODES_ONLY}
    bench.registry.change("d0:80", draining=True)
    found = explained(bench, PROMPT)
    assert found.verdict.word == "reject"
    assert [(each.worker_id, each.absence) for each in found.bystanders] == [
        ("d0:80", Absence.DRAINING),
        ("p0:80", Absence.NO_PARTNER),
    ]


@pytest.mark.parametrize("limit", [1, 2])
def test_more_than_are_shown_are_counted_by_reason(limit: int) -> None:
    bench = Bench(workers=4)
    for number in range(3):
        bench.registry.change(f"w{number}:80", draining=True)
    found = explained(bench, PROMPT, limit)
    assert len(found.bystanders) == limit
    assert found.bystanders_omitted == {Absence.DRAINING: 3 - limit}
