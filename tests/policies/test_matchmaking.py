"""Who ends a request that another worker begins."""

import numpy as np
import pytest

from policies import (
    DECODE_COST,
    FULL_ATTENTION,
    UNKNOWN_KV,
    Admission,
    AdmissionRules,
    Chosen,
    DecodeFit,
    FleetState,
    Matchmaker,
    Pairing,
    Partner,
    Partners,
    Placed,
    Policy,
    RequestView,
    WorkerPut,
    decode_policy,
    make_policy,
    place,
)

NOW_US = 1_000_000
REQUEST = RequestView(7, 7, 1000.0, 100.0, 0)


class Stage:
    """Two prefill workers (slots 0, 1), and decode workers behind them."""

    def __init__(
        self,
        decode: int = 2,
        *,
        protocol: str = "sglang",
        capacity_tokens: int = 10_000,
        policy: Policy | None = None,
    ) -> None:
        self.fleet = FleetState()
        roles = ["prefill"] * 2 + ["decode"] * decode
        for number, role in enumerate(roles):
            self.fleet.apply(
                WorkerPut(f"w{number}", 1, "r", f"http://w{number}", role, capacity_tokens=capacity_tokens)
            )
        self.decode = np.arange(2, 2 + decode)
        self.pairing = Pairing(np.arange(2), np.zeros(2, dtype=np.intp), (Partners(protocol, self.decode),))
        self.fit = DecodeFit()
        self.matchmaker = Matchmaker(
            self.fleet, Admission(AdmissionRules(), self.fleet), lambda _: self.fit, policy
        )
        self._count = 0

    def load(self, slot: int, requests: int = 1, tokens: int = 100) -> None:
        for _ in range(requests):
            self._count += 1
            self.fleet.apply(Placed(f"l{self._count}", NOW_US, f"w{slot}", "r", 0, 0, tokens, ()))

    def partner(self, request: RequestView = REQUEST) -> Partner:
        candidates = self.fleet.candidates(
            np.arange(2), (), FULL_ATTENTION, request.prompt_tokens, 256.0, NOW_US
        )
        look = self.matchmaker.look(self.pairing, request, UNKNOWN_KV, candidates)
        candidates = self.fleet.among(candidates, np.arange(2), ships=look.ships())
        chosen = place(request, candidates, make_policy("expected_cost"))
        assert isinstance(chosen, Chosen)
        partner = look.partner(chosen)
        assert partner is not None
        return partner


def test_the_smaller_batch_decodes() -> None:
    stage = Stage()
    stage.load(2, requests=3)
    assert stage.partner().slot == 3


def test_a_batch_weighs_by_its_contexts_as_well() -> None:
    """Two requests of 4,000 tokens weigh more than three of 100."""
    stage = Stage(capacity_tokens=100_000)
    stage.load(2, requests=2, tokens=40_000)
    stage.load(3, requests=3, tokens=100)
    assert stage.partner().slot == 3


def test_who_cannot_hold_the_request_is_passed_over() -> None:
    """9,500 of 10,000 tokens may be used; 8,500 are, and 1,100 do not fit."""
    stage = Stage()
    stage.load(2, tokens=8_500)
    stage.load(3, requests=20, tokens=100)
    assert stage.partner().slot == 3
    assert stage.partner(RequestView(7, 7, 800.0, 100.0, 0)).slot == 2


def test_decode_policies_are_known_by_name() -> None:
    assert decode_policy(DECODE_COST) is None
    least_load = decode_policy("least_load")
    assert least_load is not None
    assert least_load.name == "least_load"
    with pytest.raises(ValueError, match="decode_cost, expected_cost"):
        decode_policy("nonsense")
