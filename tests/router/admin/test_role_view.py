"""What an operator reads of roles: who has which, and what the slow loop would change."""

from typing import Any

from fakes.gateway import FakeShared, VirtualTime, registry

from policies import NEVER_TOKENS, OffloadPlan
from router.admin.role_view import RolePorts, described
from router.settings import RoleSettings


class Setup:
    def __init__(self, **settings: Any) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared()
        self.registry = registry(self.shared, self.time)
        self.settings = RoleSettings(**settings)

    @property
    def now_us(self) -> int:
        return self.time.clock.now_us()

    def plan(self, at_us: int, **said: Any) -> None:
        self.shared.publish(OffloadPlan(at_us, "r1", **said))

    def view(self) -> dict[str, Any]:
        return described(RolePorts(self.shared.fleet, self.registry, self.settings, lambda: self.now_us))


def test_who_has_which_role_and_who_may_change_it_shows_without_a_plan() -> None:
    setup = Setup(mode="apply", gain_ratio_min=0.1)
    setup.registry.add("http://p", role="prefill", labels={"convertible": "true", "turning": "decode"})
    setup.registry.add("http://d", role="decode", labels={"convertible": "false"})
    setup.registry.add("http://x", labels={"convertible": "true"})
    view = setup.view()
    assert view["roles"] == {"decode": ["d:80"], "plain": ["x:80"], "prefill": ["p:80"]}
    assert (view["convertible"], view["turning"]) == (["p:80", "x:80"], {"p:80": "decode"})
    assert (view["mode"], view["gain_ratio_min"], view["plan"], view["changes"]) == ("apply", 0.1, None, [])
    assert view["dwell_left_s"] == 0


def test_the_plan_shows_with_its_reason() -> None:
    setup = Setup()
    setup.plan(
        setup.now_us - 3_000_000,
        threshold_tokens=19_400,
        prefill=3,
        decode=5,
        roles={"p:80": "decode"},
        gain_ratio=0.12345,
        reason="1 should decode",
        requests_per_s=3.24,
        remote_ratio=0.496,
        egress_bytes_per_s=1.6e9,
        stuck_us={"q:80": setup.now_us - 60_000_000},
    )
    assert setup.view()["plan"] == {
        "age_s": 3.0,
        "replica": "r1",
        "reason": "1 should decode",
        "threshold_tokens": 19_400,
        "remote_ratio": 0.496,
        "egress_bytes_per_s": 1_600_000_000,
        "requests_per_s": 3.24,
        "best": {"prefill": 3, "decode": 5},
        "gain_ratio": 0.1235,
        "turn": {"p:80": "decode"},
        "stuck_for_s": {"q:80": 60.0},
    }


def test_a_threshold_that_nothing_exceeds_or_nobody_knows_is_null() -> None:
    for number, tokens in enumerate((-1, NEVER_TOKENS)):
        setup = Setup()
        setup.plan(1 + number, threshold_tokens=tokens)
        plan = setup.view()["plan"]
        assert (plan["threshold_tokens"], plan["best"]) == (None, None)


def test_the_dwell_counts_from_the_last_change_and_changes_are_remembered() -> None:
    """A plan that only says the same change again is no other one."""
    setup = Setup(dwell_s_min=100)
    first_us, second_us = setup.now_us - 90_000_000, setup.now_us - 40_000_000
    setup.plan(first_us, changed_us=first_us, turned={"p:80": "decode"})
    setup.plan(first_us + 1, changed_us=first_us, turned={"p:80": "decode"})
    setup.plan(second_us, changed_us=second_us, turned={"p:80": "prefill"})
    view = setup.view()
    assert view["dwell_left_s"] == 60
    assert [change["turned"] for change in view["changes"]] == [{"p:80": "prefill"}, {"p:80": "decode"}]
    assert view["changes"][0]["at_unix_s"] == second_us / 1e6
