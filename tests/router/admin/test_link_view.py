"""Views of links (100 bytes/s each way, of which KV may take half) and remote prefill."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.admin import parts_of
from fakes.gateway import Bench, VirtualTime

from policies import FleetRules, LinkMeasured, LinkRules, OffloadPlan, Shipped, Shipping
from policies.disaggregation import NEVER_TOKENS, LinkState, OffloadReason, OffloadVerdict
from router.admin.link_view import described, offloaded
from router.explaining import explained

NOW_US = VirtualTime().clock.now_us()
RULES = LinkRules(gbps=8e-7, rtt_ms=20.0, cap_ratio=0.5, loss_ratio_max=0.1)


class Links:
    def __init__(self) -> None:
        self.bench = Bench(workers=0, rules=FleetRules(links={"b>a": RULES, "a>b": RULES}))
        self.fleet = self.bench.shared.fleet

    def ship(self, name: str, kv_bytes: int, start_s: float, end_s: float, link: str = "b>a") -> None:
        """Reserve a link from some seconds from now to a later time."""
        self.fleet.apply(
            Shipping(
                name, NOW_US, "r1", link, kv_bytes, NOW_US + round(start_s * 1e6), NOW_US + round(end_s * 1e6)
            )
        )

    def view(self) -> dict[str, Any]:
        return {
            link["link"]: link for link in described(self.bench.gateway, self.bench.pairs.offloading)["links"]
        }


def test_a_link_nobody_uses_shows_what_is_configured() -> None:
    link = Links().view()["b>a"]
    assert (link["from"], link["to"], link["state"]) == ("b", "a", "abundant")
    assert (link["configured_bytes_per_s"], link["capacity_bytes_per_s"], link["cap_bytes_per_s"]) == (
        100,
        100,
        50,
    )
    assert (link["reserved_bytes_per_s"], link["utilisation"], link["measured"]) == (0, 0, None)
    assert (link["rtt_s"], link["loss_ratio"], link["loss_ratio_max"]) == (0.02, 0.0, 0.1)
    assert link["under_way"] == {"transfers": 0, "kv_bytes": 0}
    assert {second["reserved_bytes"] for second in link["ahead"]} == {0}


def test_what_is_reserved_shows_now_and_in_the_coming_seconds() -> None:
    """20 bytes in each of two seconds, and 10 from half of the next second to half of the third."""
    setup = Links()
    setup.ship("x", 40, 0.0, 2.0)
    setup.ship("y", 10, 1.5, 2.5)
    setup.ship("z", 7, 0.0, 1.0, link="a>b")
    link = setup.view()["b>a"]
    assert (link["reserved_bytes_per_s"], link["utilisation"]) == (20, 0.4)
    assert link["under_way"] == {"transfers": 2, "kv_bytes": 50}
    assert [second["reserved_bytes"] for second in link["ahead"]] == [20, 25, 5, 0, 0]
    assert [second["cap_ratio"] for second in link["ahead"]] == [0.4, 0.5, 0.1, 0.0, 0.0]
    setup.fleet.apply(Shipped("x", NOW_US))
    assert setup.view()["b>a"]["under_way"] == {"transfers": 1, "kv_bytes": 10}


def test_what_was_measured_shows_with_its_age_and_who_did() -> None:
    setup = Links()
    setup.fleet.apply(LinkMeasured("b>a", NOW_US - 2_000_000, "r2", 60.0, 0.03, 0.25))
    link = setup.view()["b>a"]
    assert link["measured"] == {
        "age_s": 2.0,
        "replica": "r2",
        "goodput_bytes_per_s": 60,
        "rtt_s": 0.03,
        "loss_ratio": 0.25,
    }
    assert (link["rtt_s"], link["loss_ratio"]) == (0.03, 0.25)
    assert 60 < link["capacity_bytes_per_s"] < 100  # measurements count less, the older they are


def test_a_link_that_carries_nothing_has_no_share() -> None:
    setup = Links()
    setup.fleet.links.rules = {"b>a": LinkRules(gbps=8e-7, cap_ratio=0.0)}
    assert [second["cap_ratio"] for second in setup.view()["b>a"]["ahead"]] == [None] * 5


def test_links_are_in_order_of_their_names() -> None:
    assert list(Links().view()) == ["a>b", "b>a"]


HOME = OffloadVerdict(
    remote=False,
    site="a",
    reason=OffloadReason.BELOW_THRESHOLD,
    threshold_tokens=19_400,
    uncached_local=10_000,
    uncached_remote=30_000,
    kv_bytes=600_000_000,
    link_s=0.25,
    local_s=1.8,
    remote_s=1.25,
    utilisation=0.4,
    state=LinkState.ABUNDANT,
    link="b>a",
    local_others_s=0.1,
    remote_others_s=0.2,
    wait_s=0.05,
)
AWAY = msgspec.structs.replace(HOME, remote=True, site="b", reason=OffloadReason.ABOVE_THRESHOLD)


class Setup:
    def __init__(self, *links: str, **settings: Any) -> None:
        self.bench = Bench(workers=0, rules=FleetRules(links=dict.fromkeys(links, RULES)), offload=settings)
        self.fleet, self.offloading = self.bench.shared.fleet, self.bench.gateway.placing.decider.offloading

    def view(self) -> dict[str, Any]:
        return offloaded(parts_of(self.bench))


def test_a_decision_is_told_in_tokens_seconds_and_bytes() -> None:
    setup = Setup()
    setup.offloading.went("req-1", AWAY, NOW_US - 1_500_000)
    assert setup.view()["latest"] == [
        {
            "age_s": 1.5,
            "attempt": "req-1",
            "remote": True,
            "site": "b",
            "reason": "above_threshold",
            "why": explained(AWAY),
            "threshold_tokens": 19_400,
            "local": {"uncached_tokens": 10_000, "ttft_s": 1.8, "others_lose_s": 0.1},
            "far": {
                "link": "b>a",
                "link_state": "abundant",
                "utilisation": 0.4,
                "uncached_tokens": 30_000,
                "kv_bytes": 600_000_000,
                "ttft_s": 1.25,
                "link_s": 0.25,
                "wait_s": 0.05,
                "above_cap": False,
                "others_lose_s": 0.2,
            },
        }
    ]


def test_the_sentence_says_what_both_sides_would_take() -> None:
    assert explained(AWAY) == (
        "prefilled over b>a (above_threshold): 10,000 uncached tokens take 1.800 s locally; 30,000 take "
        "1.250 s there, 0.250 s of it for 600.0 MB of KV on a link that is abundant and 40% full, "
        "threshold 19,400"
    )
    assert explained(HOME).startswith("prefilled locally (below_threshold): ")
    alone = msgspec.structs.replace(AWAY, local_s=-1.0, kv_bytes=-1, threshold_tokens=0)
    assert "no worker prefills locally" in explained(alone)
    assert "KV of unknown weight" in explained(alone)
    assert explained(alone).endswith("40% full")


def test_what_nobody_knows_is_null() -> None:
    setup = Setup()
    unknown = msgspec.structs.replace(HOME, local_s=-1.0, kv_bytes=-1, threshold_tokens=0, site="")
    setup.offloading.went("r", unknown, NOW_US)
    (told,) = setup.view()["latest"]
    assert (told["local"], told["far"]["kv_bytes"], told["threshold_tokens"], told["site"]) == (None,) * 4


def test_decisions_are_counted_by_reason_and_the_newest_comes_first() -> None:
    setup = Setup()
    for name, verdict in (("x", AWAY), ("y", HOME), ("z", AWAY)):
        setup.offloading.went(name, verdict, NOW_US)
    view = setup.view()
    assert view["decided"] == {"above_threshold": 2, "below_threshold": 1}
    assert [each["attempt"] for each in view["latest"]] == ["z", "y", "x"]


@pytest.mark.parametrize(("by_hand", "planned"), [(0, None), (0, 7000), (5000, 7000)])
def test_the_threshold_says_who_set_it(by_hand: int, planned: int | None) -> None:
    setup = Setup(threshold_tokens=by_hand)
    if planned is not None:
        setup.fleet.apply(OffloadPlan(1, "r1", planned))
    view = setup.view()
    who = "settings" if by_hand else "slow_loop"
    assert (view["threshold_tokens"], view["threshold_by"]) == (
        (by_hand or planned, who) if by_hand or planned else (None, None)
    )


def test_a_plan_under_which_nothing_is_prefilled_elsewhere_says_so() -> None:
    setup = Setup()
    assert setup.view()["nothing_remote"] is False
    setup.fleet.apply(OffloadPlan(1, "r1", NEVER_TOKENS))
    view = setup.view()
    assert (view["threshold_tokens"], view["threshold_by"], view["nothing_remote"]) == (
        None,
        "slow_loop",
        True,
    )


@pytest.mark.parametrize("reason", OffloadReason)
def test_every_reason_is_explained_to_operators(reason: OffloadReason) -> None:
    page = Path(__file__).parents[3] / "docs" / "disaggregation.md"
    assert any(
        line.startswith("|") and f"`{reason.value}`" in line.split("|")[1]
        for line in page.read_text().splitlines()
    )


def test_without_links_or_when_turned_off_nothing_is_prefilled_elsewhere() -> None:
    assert Setup("b>a").view()["enabled"] is True
    assert Setup().view()["enabled"] is False
    assert Setup("b>a", disable_remote_prefill=True).view()["enabled"] is False
