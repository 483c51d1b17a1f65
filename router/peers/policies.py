"""Names of policies that other routers have, and the policy that comes nearest."""

from collections.abc import Mapping
from types import MappingProxyType

BY_CONTENT = "it finds a session's cache by its content"

POLICY_NAMES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "consistent_hashing": (
            "consistent_hash",
            "the key is the session (--session-headers, --session-fields), else the prompt",
        ),
        "rendezvous_hash": (
            "consistent_hash",
            "the key is the session (--session-headers, --session-fields), else the prompt",
        ),
        "cache_aware_zmq": ("cache_aware", "with --kv-events auto its tree follows the engines' events"),
        "kv_aware": ("expected_cost", "with --kv-events auto its tree follows the engines' events"),
        "manual": ("expected_cost", BY_CONTENT),
        "sticky_least_loaded": ("expected_cost", BY_CONTENT),
        "sticky_round_robin": ("expected_cost", BY_CONTENT),
        "bucket": ("expected_cost", "--length-buckets parts workers by length under any policy"),
        "passthrough": ("round_robin", "the gateway chooses a worker for each request"),
    }
)
"""Our name for each name, and a remark."""

DECODE_NAMES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {name: entry for name, entry in POLICY_NAMES.items() if entry[0] != "expected_cost"}
    | {
        name: ("decode_cost", "it prices memory, transfer and batch")
        for name, entry in POLICY_NAMES.items()
        if entry[0] == "expected_cost"
    }
)
"""The same for ``--decode-policy``."""
