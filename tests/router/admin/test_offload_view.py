"""What is told of where prompts were prefilled."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from policies import (
    NEVER_TOKENS,
    FleetState,
    LinkState,
    Offload,
    Offloading,
    OffloadPlan,
    OffloadReason,
    OffloadVerdict,
)
from router.admin.offload_view import OffloadPorts, described
from router.gateway.plain_words import explained
from router.settings import OffloadSettings

NOW_US = 1_000_000_000

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
    def __init__(self, **settings: Any) -> None:
        self.settings = OffloadSettings(**settings)
        self.fleet = FleetState()
        self.offloading = Offloading(
            self.fleet,
            Offload(self.fleet.links, self.settings),
            replica="r1",
        )

    def view(self, *links: str) -> dict[str, Any]:
        return described(OffloadPorts(self.offloading, lambda: self.settings, links, lambda: NOW_US))


def test_a_decision_is_told_in_tokens_seconds_and_bytes() -> None:
    setup = Setup()
    setup.offloading.went("req-1", AWAY, NOW_US - 1_500_000)
    assert setup.view("b>a")["latest"] == [
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
    assert "nobody prefills locally" in explained(alone)
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
    assert Setup().view("b>a")["enabled"] is True
    assert Setup().view()["enabled"] is False
    assert Setup(disable_remote_prefill=True).view("b>a")["enabled"] is False
