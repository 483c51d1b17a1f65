"""What operators see, put together from the parts of a process."""

from fakes.process import built, running


async def test_what_is_set_of_remote_prefill_and_links_shows_in_views_and_metrics() -> None:
    """One link of 80 Gbit/s, of which KV may take half; nothing is reserved and nobody has planned."""
    process = await built(
        fleet={"site": "a", "links": {"b>a": {"gbps": 80, "cap_ratio": 0.5}}},
        offload={"threshold_tokens": 7000, "scarce_above": 0.6, "abundant_below": 0.4, "wait_s_max": 3},
        placement={"models": {"*": {"kv_bytes_per_token": 7}}, "prefill_policy": "round_robin"},
    )
    assert process.gateway.placing.decider.prefill_policy.name == "round_robin"
    assert process.gateway.placing.decider.policy.name == "expected_cost"
    async with running(process) as client:
        offload = (await client.get("/offload")).json()
        (link,) = (await client.get("/links")).json()["links"]
        lines = (await client.get("/metrics")).text.splitlines()
    assert (offload["enabled"], offload["threshold_tokens"], offload["threshold_by"]) == (
        True,
        7000,
        "settings",
    )
    assert (link["state"], link["cap_bytes_per_s"]) == ("abundant", 5e9)
    assert any(line.startswith('cacheway_link_capacity_bytes_per_second{link="b>a"} 1') for line in lines)
    assert 'cacheway_link_state{link="b>a",state="abundant"} 1.0' in lines
    assert "cacheway_offload_threshold_tokens 7000.0" in lines
    off = await built(
        fleet={"site": "a", "links": {"b>a": {"gbps": 80}}}, offload={"disable_remote_prefill": True}
    )
    async with running(off) as client:
        assert (await client.get("/offload")).json()["enabled"] is False
