"""Facts about a fleet for the slow loop."""

import numpy as np
import pytest

from policies import DecodeFit, FleetRules, FleetState, KvBytes, LinkRules, Placed, Reported, WorkerPut
from policies.disaggregation import RoleDemand, RoleMember
from policies.disaggregation.role_demand import role_demand
from policies.estimates.length_histogram import row_of

NOW_US = 10**15


def fit(base_s: float = 0.02, slope_s: float = 0.001, tokens: int = 101) -> DecodeFit:
    """Answers of a hundred gaps, from batches of 1 to 40."""
    learned = DecodeFit()
    for number in range(400):
        requests = 1 + number % 40
        learned.observe(requests, (tokens - 1) * (base_s + slope_s * requests), tokens)
    return learned


NOTHING = DecodeFit()
LEARNED = fit()


def fleet_of(*roles: str, rules: FleetRules | None = None, **labels: str) -> FleetState:
    fleet = FleetState(rules or FleetRules())
    for number, role in enumerate(roles):
        name, _, site = role.partition("@")
        told = {**labels, **({"site": site} if site else {})}
        fleet.apply(WorkerPut(f"w{number}", 1, "static", f"http://w{number}", name, labels=told))
    return fleet


def members(fleet: FleetState) -> list[RoleMember]:
    loads = fleet.loads.inflight_requests
    return [
        RoleMember(
            worker,
            "" if worker.site == fleet.rules.site else worker.site,
            inflight_requests=int(loads[worker.slot]),
        )
        for worker in fleet.workers()
    ]


def demand(fleet: FleetState, *, known: DecodeFit = LEARNED, tpot_slo_s: float = 0.0) -> RoleDemand:
    return role_demand(fleet, members(fleet), lambda _: known, NOW_US, tpot_slo_s)


def give(fleet: FleetState, name: str, worker: str, service_s: float = 0.0, tokens: int = 1_000) -> None:
    fleet.apply(Placed(name, NOW_US, worker, "r", round(service_s * 1e6), tokens, tokens, (b"",)))


def test_prefill_is_priced_by_the_fit_of_its_class_behind_the_cache_that_comes() -> None:
    fleet = fleet_of("prefill", "decode")
    op = Placed(
        "1", NOW_US, "w0", "r", 10**6, 1_500, 9_000, (b"",), safe_blocks=40, home_uncached_tokens=1_500
    )
    fleet.apply(op)
    told = demand(fleet)
    (found,) = told.prefill_s["default"](np.array([1_500.0])).tolist()
    assert found == pytest.approx(fleet.service_model("default").service_s(1_500, 40 * 256))
    assert told.lengths.requests.sum() == pytest.approx(1.0)
    assert told.lengths.requests[4 * row_of(1_500)] > 0


@pytest.mark.parametrize(
    ("labels", "reported", "capacity_tokens", "tpot_slo_s", "batch"),
    [
        ({"max_running_requests": "8"}, 0, 0, 0.0, 8),
        ({}, 16, 0, 0.0, 16),
        ({}, 16, 12_000, 0.0, 12),
        ({}, 16, 0, 0.03, 10),
        ({"max_running_requests": "8"}, 16, 500, 0.03, 1),
    ],
)
def test_a_worker_decodes_what_its_engine_its_memory_and_the_promise_allow(
    labels: dict[str, str], reported: int, capacity_tokens: int, tpot_slo_s: float, batch: int
) -> None:
    """Contexts of 1,000 tokens are in flight; a step takes 20 ms and one more for each request."""
    fleet = fleet_of("prefill", "decode", rules=FleetRules(capacity_tokens=capacity_tokens), **labels)
    give(fleet, "1", "w1")
    for worker in ("w0", "w1") if reported else ():
        fleet.apply(Reported(worker, NOW_US, "r", running_max=reported))
    told = demand(fleet, tpot_slo_s=tpot_slo_s)
    assert told.decode_per_s["default"] == pytest.approx(batch / (100 * (0.02 + 0.001 * batch)), rel=0.15)
    assert told.load.decode_ratio == pytest.approx(1 / batch, rel=0.15)


def test_of_decode_nothing_is_said_that_nobody_has_seen_or_that_nothing_bounds() -> None:
    assert demand(fleet_of("prefill", "decode")).decode_per_s == {}
    bounded = fleet_of("prefill", "decode", max_running_requests="8")
    assert demand(bounded, known=NOTHING).decode_per_s == {}


def test_a_class_that_never_decoded_is_priced_like_the_slowest_that_did() -> None:
    fleet = fleet_of("decode", max_running_requests="8")
    for worker, name in (("fast", "fast"), ("new", "new")):
        labels = {"worker_class": name, "max_running_requests": "8"}
        fleet.apply(WorkerPut(worker, 1, "static", "http://x", "prefill", labels=labels))
    fits = {"default": fit(0.04), "fast": fit(0.02), "new": NOTHING}
    told = role_demand(fleet, members(fleet), fits.__getitem__, NOW_US)
    assert told.decode_per_s["new"] == told.decode_per_s["default"] < told.decode_per_s["fast"]


def test_links_carry_what_may_be_reserved_of_them_once_kv_has_a_weight() -> None:
    links = {"far>home": LinkRules(8.0, cap_ratio=0.8)}
    heavy, light = KvBytes(2.0, state_bytes=3.0), KvBytes(1.0)
    rules = FleetRules(site="home", links=links, kv_bytes={"a": light, "b": heavy})
    told = demand(fleet_of("prefill", "decode", "prefill@far", "prefill@off", rules=rules))
    assert told.link_bytes_per_s == {"far": 0.8e9, "off": 0.0}
    assert told.kv_bytes(np.array([10.0])).tolist() == [heavy.of(10)] == [23.0]
    windows = KvBytes(1.0, window_bytes_per_token=5.0, window_tokens=4)
    told = demand(fleet_of("prefill", rules=FleetRules(kv_bytes={"*": windows})))
    assert told.kv_bytes(np.array([2.0, 10.0])).tolist() == [windows.of(2), windows.of(10)]
    unweighed = FleetRules(site="home", links=links)
    assert demand(fleet_of("prefill@far", rules=unweighed)).link_bytes_per_s == {"far": 0.0}


def test_stages_are_as_busy_as_their_workers_at_home_are() -> None:
    rules = FleetRules(site="home")
    fleet = fleet_of("prefill", "prefill", "decode", "prefill@far", rules=rules, max_running_requests="4")
    give(fleet, "1", "w0", service_s=8.0)
    give(fleet, "2", "w3", service_s=16.0)
    give(fleet, "3", "w2")
    load = demand(fleet).load
    assert load.prefill_ratio == pytest.approx(0.25)
    assert load.prefill_backlog_s == pytest.approx(4.0)
    assert load.decode_ratio == pytest.approx(0.25)
    idle = demand(fleet_of("decode", "prefill@far", rules=rules)).load
    assert (idle.prefill_ratio, idle.prefill_backlog_s, idle.decode_ratio) == (0.0, 0.0, 0.0)
