"""Selection of a decode worker, or of one worker for a whole request, and the predicted seconds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    ALONE,
    DECODE_COST,
    DECODE_POLICIES,
    FULL_ATTENTION,
    UNKNOWN_KV,
    Admission,
    AdmissionRules,
    Chosen,
    DecodeFit,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    KvBytes,
    LinkRules,
    Pairing,
    Partners,
    Placed,
    Policy,
    Reported,
    RequestView,
    ServiceModel,
    WorkerPut,
    make_policy,
    place,
)
from policies.disaggregation import DecodeSelector, decode_policy
from policies.disaggregation.decode_selection import (
    CONTEXT_TOKENS,
    DECODE_S,
    TPOT_BASE_S,
    TPOT_REQUEST_S,
    DecodePartner,
    DecodeView,
)
from radix import chain_bytes, root_hash

NOW_US = 1_000_000_000
REQUEST = RequestView(7, 7, 1000.0, 100.0, 0)
TOKENS_PER_BLOCK = 256.0
POLICY = make_policy("expected_cost")


class Stage:
    """Workers of these roles, in this order: ``prefill``, ``decode``, ``plain``. All prefill 1,000 tokens/s.

    Args:
        roles: Role of each slot.
        sites: Site of each slot; all at one if empty.
    """

    def __init__(
        self,
        *roles: str,
        protocol: str = "sglang",
        capacity_tokens: int = 10_000,
        policy: Policy | None = None,
        sites: tuple[str, ...] = (),
        **rules: Any,
    ) -> None:
        model = ServiceModel(a_s=0.0, b_s=0.001, c0_tokens=1e12)
        self.fleet = FleetState(FleetRules(default_model=model, **rules))
        for slot, role in enumerate(roles):
            labels = {"site": sites[slot]} if sites else {}
            self.fleet.apply(
                WorkerPut(f"w{slot}", 1, "r", f"http://w{slot}", role, False, capacity_tokens, labels)
            )
        decode = np.array([slot for slot, role in enumerate(roles) if role == "decode"])
        whole = protocol != "sglang"
        self.slots = np.array([slot for slot, role in enumerate(roles) if role != "decode" or whole])
        groups = np.array([0 if roles[slot] == "prefill" else ALONE for slot in self.slots.tolist()])
        self.pairing = Pairing(self.slots, groups, (Partners(protocol, decode),))
        self.fit = DecodeFit()
        self.admission = Admission(AdmissionRules(), self.fleet)
        self.decode_selector = DecodeSelector(self.fleet, self.admission, lambda _: self.fit, policy)
        self._count = 0

    def load(self, slot: int, requests: int = 1, tokens: int = 100, *, decoding: bool = True) -> None:
        """Give a worker requests that it decodes, or that are not there yet."""
        for _ in range(requests):
            self._count += 1
            self.fleet.apply(Placed(f"l{self._count}", NOW_US, f"w{slot}", "r", 0, 0, tokens, ()))
            if decoding:
                self.fleet.apply(FirstToken(f"l{self._count}", NOW_US))

    def hold(self, slot: int, path: bytes) -> None:
        """Let a worker have a prompt."""
        self.fleet.apply(Placed(f"h{slot}", NOW_US, f"w{slot}", "r", 0, 0, 0, (path,)))
        self.fleet.apply(Finished(f"h{slot}", NOW_US, NOW_US))

    def decode_view(
        self, request: RequestView = REQUEST, path: bytes = b"", kv: KvBytes = UNKNOWN_KV
    ) -> tuple[DecodeView, Chosen]:
        candidates = self.fleet.candidates(
            self.slots,
            (path,) if path else (),
            FULL_ATTENTION,
            request.prompt_tokens,
            TOKENS_PER_BLOCK,
            NOW_US,
        )
        decode_view = self.decode_selector.decode_view(self.pairing, request, kv, candidates)
        chosen = place(request, self.fleet.among(candidates, self.slots, ships=decode_view.ships()), POLICY)
        assert isinstance(chosen, Chosen)
        return decode_view, chosen

    def chosen(self, *arguments: Any) -> Chosen:
        return self.decode_view(*arguments)[1]

    def partner(self, *arguments: Any) -> DecodePartner:
        decode_view, chosen = self.decode_view(*arguments)
        partner = decode_view.partner(chosen)
        assert partner is not None
        return partner


# The decode worker.


def test_the_smaller_batch_decodes() -> None:
    stage = Stage("prefill", "decode", "decode")
    stage.load(1, requests=3)
    assert stage.partner().slot == 2


def test_what_was_sent_counts_before_it_arrives() -> None:
    stage = Stage("prefill", "decode", "decode")
    stage.load(1, requests=3, decoding=False)
    assert stage.partner().slot == 2


def test_a_batch_weighs_by_its_contexts_as_well() -> None:
    """Two requests of 40,000 tokens weigh more than three of 100."""
    stage = Stage("prefill", "decode", "decode", capacity_tokens=100_000)
    stage.load(1, requests=2, tokens=40_000)
    stage.load(2, requests=3, tokens=100)
    assert stage.partner().slot == 2


def test_who_cannot_hold_the_request_is_passed_over() -> None:
    """9,500 of 10,000 tokens may be used; 8,500 are, and 1,100 do not fit, but 900 do."""
    stage = Stage("prefill", "decode", "decode")
    stage.load(1, tokens=8_500)
    stage.load(2, requests=20, tokens=100)
    assert stage.partner().slot == 2
    assert stage.partner(RequestView(7, 7, 800.0, 100.0, 0)).slot == 1


def test_what_an_engine_reports_beyond_our_count_takes_room() -> None:
    stage = Stage("prefill", "decode", "decode")
    stage.load(1, tokens=100)
    stage.load(2, requests=20, tokens=100)
    stage.fleet.apply(Reported("w1", NOW_US, "r", kv_tokens=9_000, inflight_requests=1, inflight_tokens=100))
    assert stage.partner().slot == 2


def test_where_all_are_full_the_first_to_have_room_is_chosen_and_waited_for() -> None:
    """500 of 9,500 tokens must end on the one, 100 of 9,100 on the other: that part of a decode's time."""
    stage = Stage("prefill", "decode", "decode")
    stage.load(1, tokens=9_000)
    stage.load(2, tokens=8_500)
    decode_view, chosen = stage.decode_view()
    partner = decode_view.partner(chosen)
    assert partner is not None
    assert not decode_view.has_room(0)
    assert partner.slot == 2
    assert partner.wait_s == pytest.approx(DECODE_S * 100 / 8_500)
    assert decode_view.wait_s(0) == chosen.queue_s == partner.wait_s


def test_the_price_of_a_token_is_what_was_learned() -> None:
    stage = Stage("prefill", "decode")
    stage.load(1, requests=4, tokens=1100)
    assert stage.partner().tpot_s == pytest.approx(TPOT_BASE_S + 5 * TPOT_REQUEST_S)
    for requests in range(1, 200):
        stage.fit.observe(requests, 100 * (0.02 + 0.001 * requests), 101)
    assert stage.partner().tpot_s == pytest.approx(0.025, rel=0.01)


@given(st.data())
def test_columns_choose_as_one_worker_after_the_other_would(data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 12))
    stage = Stage("prefill", *["decode"] * workers)
    batches = [
        [data.draw(st.integers(50, 4_000)) for _ in range(data.draw(st.integers(0, 4)))]
        for _ in range(workers)
    ]
    for row, batch in enumerate(batches):
        for tokens in batch:
            stage.load(row + 1, tokens=tokens)
    tokens = REQUEST.prompt_tokens + REQUEST.output_tokens
    sums = [(len(batch) + 1, sum(batch) + tokens) for batch in batches]
    mean = sum(held for _, held in sums) / sum(count for count, _ in sums)

    def cost(row: int) -> float:
        count, held = sums[row]
        weight = (count + held / CONTEXT_TOKENS) / (1 + mean / CONTEXT_TOKENS)
        lacking = max(held - 9_500, 0) / max(held - tokens, 1) if batches[row] else 0
        tpot_s = TPOT_BASE_S + TPOT_REQUEST_S * weight
        return DECODE_S * min(lacking, 1.0) + REQUEST.output_tokens * tpot_s

    fitting = [row for row in range(workers) if not batches[row] or sums[row][1] <= 9_500]
    best = min(cost(row) for row in fitting or range(workers))
    chosen = stage.partner().slot - 1
    assert not fitting or chosen in fitting
    assert cost(chosen) == pytest.approx(best)


@pytest.mark.parametrize("name", DECODE_POLICIES)
def test_every_policy_chooses_among_those_with_room(name: str) -> None:
    stage = Stage("prefill", "decode", "decode", policy=decode_policy(name))
    stage.load(1, tokens=9_000)
    stage.load(2, requests=5)
    assert stage.partner().slot == 2


def test_a_policy_of_the_peers_decides_by_its_own_rule() -> None:
    stage = Stage("prefill", "decode", "decode", policy=decode_policy("round_robin"))
    assert {stage.partner(RequestView(7, 7, 1000.0, 100.0, turn)).slot for turn in range(4)} == {1, 2}
    nobody = Policy("nobody", lambda _, candidates: np.full(len(candidates), np.inf), uses_cache=False)
    decode_view, chosen = Stage("prefill", "decode", policy=nobody).decode_view()
    assert decode_view.partner(chosen) is None


def test_decode_policies_are_known_by_name() -> None:
    assert decode_policy(DECODE_COST) is None
    least_load = decode_policy("least_load")
    assert least_load is not None
    assert least_load.name == "least_load"
    with pytest.raises(ValueError, match="decode_cost, expected_cost"):
        decode_policy("nonsense")


# The prefill worker.


def test_a_pair_that_has_no_room_is_later_than_a_plain_worker_with_a_queue() -> None:
    """Its room comes in 10 · 100/8,500 s; the plain worker begins in 0.1 s, or in 0.15."""
    for backlog_us, slot in ((100_000, 0), (150_000, 1)):
        stage = Stage("plain", "prefill", "decode")
        stage.load(2, tokens=8_500)
        stage.fleet.apply(Placed("b", NOW_US, "w0", "r", backlog_us, 100, 100, ()))
        assert stage.chosen().slot == slot


def test_the_wait_for_room_and_the_queue_run_side_by_side() -> None:
    stage = Stage("prefill", "decode")
    stage.load(1, tokens=8_500)
    stage.fleet.apply(Placed("b", NOW_US, "w0", "r", 2_000_000, 100, 100, ()))
    assert stage.chosen().queue_s == 2.0


def test_pairs_of_several_protocols_and_plain_workers_compete_in_the_same_seconds() -> None:
    stage = Stage("plain", "prefill", "prefill", "decode", "decode")
    partners = (Partners("nixl", np.array([3])), Partners("sglang", np.array([4])))
    stage.pairing = Pairing(np.arange(3), np.array([ALONE, 0, 1]), partners)
    stage.load(3, tokens=9_000)
    stage.load(0, requests=3)
    assert stage.chosen().slot == 2
    stage.load(4, tokens=9_200)
    chosen = stage.chosen()
    assert chosen.slot == 1
    assert chosen.queue_s == pytest.approx(DECODE_S * 600 / 9_000)


@pytest.mark.parametrize(("stalled", "slot"), [(3, 0), (5, 1)])
def test_a_worker_that_decodes_is_charged_for_those_it_stalls(stalled: int, slot: int) -> None:
    """1 s of prefill there stalls each of n; the prefill worker begins 4 s later, and stalls no request."""
    stage = Stage("plain", "prefill", "decode")
    stage.load(0, requests=stalled)
    stage.fleet.apply(Placed("b", NOW_US, "w1", "r", 4_000_000, 100, 100, ()))
    chosen = stage.chosen()
    assert chosen.slot == slot
    assert chosen.stall_s == pytest.approx(3.0 if slot == 0 else 0.0)
    assert chosen.estimated_ttft_s == pytest.approx(1.0 if slot == 0 else 5.0)


# A decode worker that takes it whole.

PATH = chain_bytes(bytes(16 * 4), root_hash(1), 4)
LONG = RequestView(7, 7, 4196.0, 100.0, 0)
"""16 blocks, and 100 tokens behind them."""


@pytest.mark.parametrize(("stalled", "slot"), [(0, 1), (30, 1), (50, 0)])
def test_a_decode_worker_that_holds_most_of_the_prefix_takes_a_request_whole_if_that_is_sooner(
    stalled: int, slot: int
) -> None:
    """It would prefill 100 tokens in 0.1 s, and stall n for that time; the prefill worker needs 4.196 s."""
    stage = Stage("prefill", "decode", protocol="nixl", capacity_tokens=100_000)
    stage.hold(1, PATH)
    stage.load(1, requests=stalled)
    chosen = stage.chosen(LONG, PATH)
    assert chosen.slot == slot
    if slot == 1:
        assert chosen.safe_tokens == 4096
        assert chosen.stall_s == pytest.approx(0.1 * stalled)
        assert chosen.estimated_ttft_s == pytest.approx(0.1)


def test_decode_workers_of_sglang_take_nothing_whole() -> None:
    stage = Stage("prefill", "decode")
    stage.hold(1, PATH)
    assert stage.chosen(LONG, PATH).slot == 0


def test_a_whole_request_needs_the_room_of_a_decode_worker_too() -> None:
    stage = Stage("prefill", "decode", protocol="nixl")
    stage.load(1, tokens=9_000)
    decode_view, _ = stage.decode_view()
    assert not decode_view.has_room(1)
    assert decode_view.open(stage.slots).tolist() == []
    stage = Stage("prefill", "decode", protocol="nixl")
    decode_view, _ = stage.decode_view()
    assert decode_view.has_room(1)
    assert decode_view.open(stage.slots).tolist() == [0, 1]
    stage.load(1)
    assert stage.decode_view()[0].open(stage.slots).tolist() == [0]


def test_policies_that_do_not_count_in_seconds_leave_decode_workers_to_their_work() -> None:
    stage = Stage("prefill", "decode", protocol="nixl")
    decode_view, _ = stage.decode_view()
    others = decode_view.without_decode(stage.slots)
    assert others.tolist() == [0]
    assert decode_view.without_decode(stage.slots) is others
    only = np.array([1])
    assert decode_view.without_decode(only) is only


# Traffic on a link.

LINKS = {"far>near": LinkRules(gbps=0.008, rtt_ms=100.0, cap_ratio=0.5)}
KV = KvBytes(kv_bytes_per_token=1000.0)


def far_stage(protocol: str) -> Stage:
    return Stage(
        "prefill", "decode", sites=("far", "near"), links=LINKS, protocol=protocol, capacity_tokens=50_000
    )


@pytest.mark.parametrize(("protocol", "transfer_s"), [("sglang", 1.1), ("nixl", 2.1)])
def test_a_transfer_costs_what_the_prefill_does_not_overlap(protocol: str, transfer_s: float) -> None:
    """1,000 tokens weigh 1 MB, 2 s at half of 1 MB/s; SGLang sends half of it during 1 s of prefill."""
    stage = far_stage(protocol)
    stage.load(1, requests=5)
    decode_view, chosen = stage.decode_view(REQUEST, b"", KV)
    partner = decode_view.partner(chosen)
    assert partner is not None
    assert chosen.slot == 0
    assert chosen.transfer_s == pytest.approx(transfer_s)
    assert partner.transfer_s == pytest.approx(transfer_s)
    assert chosen.estimated_ttft_s == pytest.approx(1.0 + transfer_s)


def test_only_what_the_decode_worker_lacks_is_sent() -> None:
    """4,096 of 4,196 tokens are there; 0.1 MB take 0.2 s, and nothing overlaps them."""
    stage = far_stage("nixl")
    stage.hold(1, PATH)
    stage.load(1, requests=60)
    partner = stage.partner(LONG, PATH, KV)
    assert partner.cached_tokens == 4096
    assert partner.transfer_s == pytest.approx(0.1 + 0.2)
    stage = far_stage("sglang")
    stage.hold(1, PATH)
    assert stage.partner(LONG, PATH, KV).cached_tokens == 0


def test_a_full_link_closes_the_worker_in_front_of_it_and_leaves_the_first_look_as_it_was() -> None:
    decode_view, _ = far_stage("sglang").decode_view()
    full = decode_view.without_room_on("far>near")
    assert (full.has_room(0), full.full_link(0), full.open(np.array([0])).tolist()) == (False, "far>near", [])
    assert (decode_view.has_room(0), decode_view.full_link(0), decode_view.open(np.array([0])).tolist()) == (
        True,
        "",
        [0],
    )
    other = decode_view.without_room_on("near>far")
    assert (other.has_room(0), other.full_link(0)) == (True, "")


# Between requests.


def test_whoever_could_begin_a_short_request_is_open() -> None:
    stage = Stage("plain", "prefill", "decode", "decode")
    open_ = stage.decode_selector.open
    assert open_(stage.pairing, stage.slots, NOW_US).tolist() == [True, True]
    stage.load(2, tokens=9_600)
    assert stage.decode_selector.is_open(stage.pairing, 1, NOW_US)
    stage.load(3, tokens=9_600)
    assert open_(stage.pairing, stage.slots, NOW_US).tolist() == [True, False]
    assert not stage.decode_selector.is_open(stage.pairing, 1, NOW_US)
    assert stage.decode_selector.is_open(stage.pairing, 0, NOW_US)


def test_a_decode_worker_is_open_while_it_decodes_nothing() -> None:
    stage = Stage("prefill", "decode", protocol="nixl")
    assert stage.decode_selector.is_open(stage.pairing, 1, NOW_US)
    stage.load(1)
    assert not stage.decode_selector.is_open(stage.pairing, 1, NOW_US)
    assert stage.decode_selector.open(stage.pairing, stage.slots, NOW_US).tolist() == [True, False]


def test_room_is_asked_for_by_length() -> None:
    stage = Stage("prefill", "decode")
    stage.load(1, tokens=9_000)
    assert stage.decode_selector.any_room(stage.pairing, 500.0, NOW_US)
    assert not stage.decode_selector.any_room(stage.pairing, 501.0, NOW_US)


def test_what_is_kept_of_a_list_follows_the_workers() -> None:
    stage = Stage("prefill", "decode")
    pools = stage.decode_selector.pools(stage.pairing)
    assert stage.decode_selector.pools(stage.pairing) is pools
    stage.fleet.apply(WorkerPut("w1", 2, "r", "http://w1", "decode", labels={"worker_class": "other"}))
    assert stage.decode_selector.pools(stage.pairing).pools[0].classes[0][0] == "other"
    for _ in range(200):
        stage.decode_selector.pools(Pairing(stage.slots, stage.pairing.groups, stage.pairing.partners))
    assert len(stage.decode_selector._cached) <= 100
