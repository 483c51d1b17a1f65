"""What an operator reads of links: a hundred bytes a second each way, of which KV may take half."""

from typing import Any

import httpx
from fastapi import FastAPI

from policies import FleetRules, FleetState, LinkMeasured, LinkRules, Shipped, Shipping
from router.admin.link_view import LinkPorts, add_link_view, described

NOW_US = 1_000_000_000
RULES = LinkRules(bytes_per_s=100.0, rtt_s=0.02, cap_ratio=0.5, loss_ratio_max=0.1)


class Setup:
    def __init__(self) -> None:
        self.fleet = FleetState(FleetRules(links={"b>a": RULES, "a>b": RULES}))

    def ship(self, name: str, kv_bytes: int, start_s: float, end_s: float, link: str = "b>a") -> None:
        """Reserve a link from some seconds from now until some more."""
        self.fleet.apply(
            Shipping(
                name, NOW_US, "r1", link, kv_bytes, NOW_US + round(start_s * 1e6), NOW_US + round(end_s * 1e6)
            )
        )

    @property
    def ports(self) -> LinkPorts:
        return LinkPorts(self.fleet.links, lambda link, _: f"state of {link}", lambda: NOW_US)

    def view(self) -> dict[str, Any]:
        return {link["link"]: link for link in described(self.ports)["links"]}


def test_a_link_nobody_uses_shows_what_is_configured() -> None:
    link = Setup().view()["b>a"]
    assert (link["from"], link["to"], link["state"]) == ("b", "a", "state of b>a")
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
    setup = Setup()
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
    setup = Setup()
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
    assert 60 < link["capacity_bytes_per_s"] < 100  # what was measured counts less, the older it is


def test_a_link_that_carries_nothing_has_no_share() -> None:
    setup = Setup()
    setup.fleet.links.rules = {"b>a": LinkRules(bytes_per_s=100.0, cap_ratio=0.0)}
    assert [second["cap_ratio"] for second in setup.view()["b>a"]["ahead"]] == [None] * 5


async def test_the_route_answers_in_order_of_names() -> None:
    api = FastAPI()
    add_link_view(api, Setup().ports)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
        answer = (await client.get("/links")).json()
    assert [link["link"] for link in answer["links"]] == ["a>b", "b>a"]
