"""A user's policy is timed, and one that fails is off: the fallback decides, and no request is lost."""

from collections.abc import Callable
from typing import Any

import pytest

from policies import Chosen, place
from router.errors import SettingsError
from router.own_policies import OwnPolicies, check_own_policies
from router.own_policies.guarded import LATE_MAX, FailureReason
from router.settings import PlacementSettings, Settings

Write = Callable[[str], str]

CODE = """
calls = []
def calm(request, workers, *, weight=1.0):
    calls.append(len(workers))
    return weight * workers.inflight_requests
def sour(request, workers):
    if request.key == 13:
        raise RuntimeError("boom")
    return workers.inflight_requests
def leaves(request, workers):
    if request.key == 13:
        raise SystemExit(1)
    return workers.inflight_requests
"""


class Clock:
    """A clock that a decision moves on by ``took_s``."""

    def __init__(self) -> None:
        self.now_s, self.took_s, self._inside = 0.0, 0.0, False

    def __call__(self) -> float:
        if self._inside:
            self.now_s += self.took_s
        self._inside = not self._inside
        return self.now_s


def own(write: Write, name: str, **rules: Any) -> tuple[OwnPolicies, str, list[str], Clock]:
    full, off, clock = f"{write(CODE)}:{name}", [], Clock()
    settings = PlacementSettings(policy=full, **rules)
    return OwnPolicies(settings, off.append, clock), full, off, clock


def test_a_policy_decides_and_is_timed(write: Write, make_candidates: Any, make_request: Any) -> None:
    policies, name, off, clock = own(write, "calm")
    clock.took_s = 0.0002
    workers = make_candidates(inflight_requests=[3.0, 1.0])
    chosen = place(make_request(), workers, policies.make(name, {}))

    assert isinstance(chosen, Chosen)
    assert (chosen.slot, off) == (1, [])
    (described,) = policies.described()
    assert described == {
        "name": name,
        "state": "in_use",
        "why_off": None,
        "fallback": "expected_cost",
        "decisions": 1,
        "late": 0,
        "budget_us": 1000,
        "mean_us": 200.0,
        "max_us": 200.0,
    }


@pytest.mark.parametrize("name", ["sour", "leaves"])
def test_the_request_in_which_it_fails_is_placed_by_the_fallback(
    write: Write, make_candidates: Any, make_request: Any, name: str
) -> None:
    policies, full, off, _ = own(write, name, own_policy_fallback="least_load")
    policy = policies.make(full, {})
    workers = make_candidates(inflight_requests=[3.0, 1.0, 2.0])

    assert isinstance(place(make_request(key=1), workers, policy), Chosen)
    chosen = place(make_request(key=13), workers, policy)
    assert isinstance(chosen, Chosen)
    assert (chosen.slot, off) == (1, [full])
    place(make_request(key=13), workers, policy)
    assert off == [full], "it is asked no more"
    assert policies.make(full, {}).name == "least_load"
    assert policies.is_off(full)
    (trouble,) = policies.troubles()
    assert "is off, and least_load decides: it failed:" in trouble
    assert policies.records[full].reason is FailureReason.RAISED


def test_late_decisions_are_forgiven_if_they_are_few(
    write: Write, make_candidates: Any, make_request: Any
) -> None:
    policies, name, off, clock = own(write, "calm")
    policy, workers = policies.make(name, {}), make_candidates(inflight_requests=[3.0, 1.0])
    for round_ in range(30):
        for step in range(101):
            clock.took_s = 0.002 if step == 0 else 0.0001
            place(make_request(key=round_), workers, policy)
    assert off == []
    assert policies.records[name].late == 30


def test_a_policy_that_is_late_too_often_is_off(
    write: Write, make_candidates: Any, make_request: Any
) -> None:
    policies, name, off, clock = own(write, "calm", own_policy_budget_us=500)
    policy, workers = policies.make(name, {}), make_candidates(inflight_requests=[3.0, 1.0])
    clock.took_s = 0.0006
    for _ in range(int(LATE_MAX)):
        assert off == []
        place(make_request(), workers, policy)
    assert off == [name]
    assert policies.records[name].reason is FailureReason.LATE
    assert "took longer than 500 us" in policies.records[name].off


def test_a_policy_that_stalls_all_streams_is_off_at_once(
    write: Write, make_candidates: Any, make_request: Any
) -> None:
    policies, name, off, clock = own(write, "calm")
    clock.took_s = 0.2
    place(make_request(), make_candidates(inflight_requests=[3.0, 1.0]), policies.make(name, {}))
    assert off == [name]


def test_only_what_was_loaded_at_the_start_can_be_chosen(write: Write) -> None:
    policies, name, _, _ = own(write, "calm")
    other = f"{name.partition(':')[0]}:sour"

    assert policies.problems(Settings(placement={"policy": name})) == []
    (problem,) = policies.problems(Settings(placement={"shadow_policy": other}))
    assert problem.startswith(f"placement.shadow_policy: policy '{other}' was not loaded when")
    with pytest.raises(ValueError, match=r"name it in placement\.own_policies"):
        policies.make(other, {})


def test_start_says_all_that_cannot_be_used(write: Write) -> None:
    module = write(CODE + "\ndef broken(request): return None\n")
    check_own_policies(Settings(placement={"own_policies": [f"{module}:calm"], "policy": f"{module}:sour"}))
    with pytest.raises(SettingsError) as refused:
        check_own_policies(
            Settings(placement={"policy": f"{module}:broken", "shadow_policy": "no_such_package:rule"})
        )
    assert len(refused.value.problems) == 2
    with pytest.raises(SettingsError, match="has no option 'width'"):
        check_own_policies(Settings(placement={"policy": f"{module}:calm", "policy_options": {"width": 1.0}}))
