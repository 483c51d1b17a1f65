"""The option as the gateway sees it: what is asked of it without a pair, and new settings."""

import msgspec
from fakes.gateway import Bench
from fakes.handover import PairBench
from fakes.rehearsals import parsed_text

from policies.disaggregation import PairDecider
from router.settings import Settings


def test_it_extends_the_gateways_decider() -> None:
    bench = Bench(1)
    decider = bench.gateway.placing.decider
    assert isinstance(decider, PairDecider)
    assert decider.offloading is bench.pairs.offloading


def test_a_protocol_says_what_it_splits_and_an_unknown_one_is_not_asked() -> None:
    bench, parsed = PairBench(1, 1), parsed_text((1,))
    assert bench.pairs.splits("unheard-of", parsed)
    assert bench.pairs.splits("sglang", parsed)
    assert not bench.pairs.splits("sglang", msgspec.structs.replace(parsed, n=2))


def test_a_decode_worker_alone_gets_the_body_of_its_protocol() -> None:
    bench = PairBench(1, 1)
    assert bench.pairs.alone("nixl", (b"{}",)) == (b"{}", b" ")


def test_new_settings_reach_partners_links_and_stalls() -> None:
    bench = Bench(1)
    new = Settings.model_validate(
        {
            "placement": {"decode_policy": "least_load"},
            "offload": {"threshold_tokens": 700},
            "reliability": {"stall_factor": 2, "stall_floor_s": 3},
        }
    )
    bench.gateway.use(new)
    policy = bench.pairs.decode_selector.policy
    assert policy is not None
    assert policy.name == "least_load"
    assert bench.pairs.offloading.threshold_tokens == 700
    assert bench.pairs.stall_detector._limit_s(5.0) == 13.0
