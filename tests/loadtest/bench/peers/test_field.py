"""Routers that take part."""

from loadtest.bench.peers.field import PEERS, WORKLOADS, Kind, keys


def test_keys_are_unique_and_follow_the_kinds() -> None:
    assert len({peer.key for peer in PEERS}) == len(PEERS)
    assert keys(Kind.CACHE_AWARE) == ("sglang-ca", "smg-ca", "vllm-ca")
    assert keys(Kind.ROUND_ROBIN) == ("sglang-rr", "smg-rr", "vllm-rr")
    assert keys(Kind.PLAIN, Kind.OURS) == ("cacheway", "nginx")


def test_only_memory_needs_a_fill() -> None:
    assert [workload.fill for workload in WORKLOADS if workload.fill] == ["W7fill"]
