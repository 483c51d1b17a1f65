"""A user's policy is imported, its signature read, and it is tried before it decides anything."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies import make_policy
from router.own_policies import NotLoaded, full_name, load_rule, rules_of

Write = Callable[[str], str]


def test_a_function_and_an_object_are_policies(write: Write) -> None:
    module = write(
        """
def calm(request, workers, *, weight=2.0):
    return weight * workers.inflight_requests
counting = Counting()
class Rules:
    inner = Counting()
"""
    )
    assert load_rule(f"{module}:counting").unit == "calls"
    assert load_rule(f"{module}:Rules.inner").options is None
    name = f"{module}:calm"
    policy = make_policy(name, {"weight": 3.0}, rules_of(name))
    assert (policy.name, policy.unit, policy.price) == (name, "the policy's own unit", None)
    with pytest.raises(ValueError, match="has no option 'width'; it has: weight"):
        make_policy(name, {"width": 3.0}, rules_of(name))


def test_options_reach_the_policy(write: Write, make_candidates: Any, make_request: Any) -> None:
    code = "def calm(request, workers, *, weight=2):\n    return weight * workers.inflight_requests"
    name = f"{write(code)}:calm"
    workers = make_candidates(inflight_requests=[3.0, 1.0])
    costs = [
        make_policy(name, options, rules_of(name)).costs(make_request(), workers)
        for options in ({}, {"weight": 5.0})
    ]
    assert [each.tolist() for each in costs] == [[6.0, 2.0], [15.0, 5.0]]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def p(request, workers): raise RuntimeError('boom')", "trial fleet of 1: RuntimeError: boom"),
        ("def p(request, workers): return np.zeros(3)", r"shape \(3,\) for 1 workers"),
        ("def p(request, workers): return np.full(len(workers), np.nan)", "it returned nan"),
        ("def p(request, workers): return workers.backlog_s / 0.0 * np.inf", "RuntimeWarning|nan"),
        (
            "def p(request, workers):\n    costs = workers.backlog_s\n    costs += 1\n    return costs",
            "read-only",
        ),
        ("def p(request): return None", "is called as policy"),
        ("def p(request, workers, third): return None", "is called as policy"),
        ("def p(request, workers, *, weight): return None", "is called as policy"),
        ("def p(request, workers, *, weight='x'): return None", "weight needs a finite number"),
        ("def p(request, workers, *, weight=True): return None", "weight needs a finite number"),
        ("async def p(request, workers): return None", "async"),
        ("p = Counting", "it is a class; make an instance"),
        ("p = 3", "it is int, and cannot be called"),
        ("q = 3", "has no p"),
        ("import no_such_module_of_a_user", "cannot be imported: ModuleNotFoundError"),
        ("def p(: pass", "cannot be imported: SyntaxError"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit"),
    ],
)
def test_what_cannot_decide_is_not_loaded(write: Write, code: str, why: str) -> None:
    with pytest.raises(NotLoaded, match=why):
        load_rule(f"{write(code)}:p")


def test_a_missing_module_is_told_with_the_way_to_find_it() -> None:
    with pytest.raises(NotLoaded, match=r"finds no module no_such_package; .*PYTHONPATH=\."):
        load_rule("no_such_package.rules:calm")
    with pytest.raises(NotLoaded, match=r"is not of the form PACKAGE\.MODULE:NAME"):
        load_rule("calm")


def test_a_policy_may_import_what_the_gateway_leaves_out(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "colorsys", None)
    code = "import colorsys\ndef calm(request, workers): return workers.inflight_requests"
    assert load_rule(f"{write(code)}:calm").options is None


def test_an_entry_point_stands_for_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution = tmp_path / "own-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(
        "[cacheway.policies]\ncalm = own.rules:calm\nrandom = own.rules:other\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert full_name("calm") == "own.rules:calm"
    assert full_name("random") == "random", "a policy of the registry keeps its name"
    assert full_name("calmer") == "calmer"
    assert full_name("other.rules:calm") == "other.rules:calm"
    assert full_name("") == ""
