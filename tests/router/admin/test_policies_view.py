"""What is told of the policies."""

from fakes.admin import Setup

from policies import POLICIES
from router.admin.policies_view import described
from router.settings import PlacementSettings


async def test_the_policies_are_told_with_what_they_decide_now(setup: Setup) -> None:
    page = (await setup.client.get("/policies")).json()
    assert [policy["name"] for policy in page["policies"]] == list(POLICIES)
    first = page["policies"][0]
    assert (first["name"], first["decides"], first["uses_cache"]) == (
        "expected_cost",
        ["placement", "prefill"],
        True,
    )
    assert first["picks"].startswith("What a placement costs")
    assert page["decode_only"]["decides"] == ["decode"]
    assert page["shadow"] is None

    values = {
        "placement.policy": "affinity",
        "placement.policy_options": {"match_weight": 3},
        "placement.shadow_policy": "lmetric",
        "placement.shadow_ratio": 0.5,
    }
    await setup.client.patch("/settings", json={"values": values})
    page = (await setup.client.get("/policies")).json()
    assert page["active"]["placement"] == {"policy": "affinity", "options": {"match_weight": 3.0}}
    assert page["shadow"] == {"policy": "lmetric", "options": {}, "ratio": 0.5}


def test_options_are_told_with_their_ranges() -> None:
    settings = PlacementSettings(policy="least_load", prefill_policy="affinity", decode_policy="round_robin")
    page = described(settings)
    by_name = {policy["name"]: policy for policy in page["policies"]}
    (option, *_) = by_name["affinity"]["options"]
    assert option.keys() == {"name", "default", "low", "high"}
    assert by_name["least_load"]["options"] == []
    assert [by_name[name]["decides"] for name in ("least_load", "affinity", "round_robin")] == [
        ["placement"],
        ["prefill"],
        ["decode"],
    ]
    assert page["decode_only"]["decides"] == []
