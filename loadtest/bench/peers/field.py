"""Peers and workloads of the comparison.

Keys are those of the benchmark kit, but for cacheway's own. `DIRECT` is no router: the load generator talks
to one mock engine, which shows the machine's own latency.
"""

from dataclasses import dataclass
from enum import Enum

CACHEWAY = "cacheway"
DIRECT = "direct"


class Kind(Enum):
    """Knowledge of a router when it chooses a worker; the value is the chart's name for it."""

    OURS = "cacheway: cache-aware, shared state"
    PLAIN = "nginx: looks at nothing"
    CACHE_AWARE = "Rust, cache-aware"
    ROUND_ROBIN = "Rust, round robin"


@dataclass(frozen=True, slots=True)
class Peer:
    """One router in one mode.

    Attributes:
        key: In the kit and the results.
        package: Its version counts.
        kind: Of knowledge about caches.
        part: Needed part of the kit's installation; empty for none.
        binary: Installed by that part, below ``BENCH_HOME`` unless it is absolute.
    """

    key: str
    name: str
    package: str
    kind: Kind
    part: str = ""
    binary: str = ""


def _rust(package: str, part: str, binary: str) -> tuple[Peer, Peer]:
    return (
        Peer(f"{part}-ca", f"{package}, cache-aware", package, Kind.CACHE_AWARE, part, binary),
        Peer(f"{part}-rr", f"{package}, round robin", package, Kind.ROUND_ROBIN, part, binary),
    )


_RUST = (
    _rust("sglang-router", "sglang", "v-sglang/bin/sglang-router"),
    _rust("smg", "smg", "v-smg/bin/smg"),
    _rust("vllm-router", "vllm", "v-vllm/bin/vllm-router"),
)

PEERS = (
    Peer(CACHEWAY, "cacheway", "cacheway", Kind.OURS),
    Peer("nginx", "nginx", "nginx", Kind.PLAIN, "nginx", "/usr/sbin/nginx"),
    *(cache_aware for cache_aware, _ in _RUST),
    *(round_robin for _, round_robin in _RUST),
)


def keys(*kinds: Kind) -> tuple[str, ...]:
    """The peers of these kinds."""
    return tuple(peer.key for peer in PEERS if peer.kind in kinds)


class Figure(Enum):
    """Subject of a workload; the value is its unit, as tables and the chart write it."""

    CPU_PER_REQUEST = "CPU µs/request"
    CPU_PER_CHUNK = "CPU µs/chunk"
    ADDED_LATENCY = "added latency P50, ms"
    MEMORY = "resident memory, MiB"


@dataclass(frozen=True, slots=True)
class Workload:
    """One load.

    Attributes:
        key: In the issue, the kit and the results.
        figure: Its subject.
        fill: Workload before it in the same process, measured as well; empty for none.
    """

    key: str
    title: str
    figure: Figure
    fill: str = ""


WORKLOADS = (
    Workload("W1", "1 KB prompts, 64 connections", Figure.CPU_PER_REQUEST),
    Workload("W1P", "50 shared prefixes of 4 KB and 512 B unique, 64 connections", Figure.CPU_PER_REQUEST),
    Workload("W2", "64 KB prompts, 16 connections", Figure.CPU_PER_REQUEST),
    Workload("W3", "4 MB prompts, 4 connections", Figure.CPU_PER_REQUEST),
    Workload("W4", "64 streams of 100 chunks, as fast as they go", Figure.CPU_PER_CHUNK),
    Workload("W5", "200 streams of 100 chunks, 20 ms apart", Figure.CPU_PER_CHUNK),
    Workload("W6", "1 KB prompts, 50 requests/s", Figure.ADDED_LATENCY),
    Workload("W7", "after 20,000 distinct prompts of 8 KB", Figure.MEMORY, fill="W7fill"),
)
