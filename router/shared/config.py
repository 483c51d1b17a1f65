"""What a shared state is told when it is made, and what it tells about itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from router.shared.ports import SkipReason
from router.shared.snapshot import TRIM_MARGIN_S


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """What a replica needs to know to share its state.

    Attributes:
        url: Where Redis is (`router.shared.server.RedisLink`).
        namespace: Replicas of one namespace share their state.
        replica: Id of this replica, unique in the namespace among those that run.
        flush_interval_s: Pause between two flushes, in which operations are gathered.
        buffer_ops_max: Most own operations kept while Redis is gone.
        buffer_bytes_max: Most bytes of them.
        snapshot_interval_s: Age at which the snapshot is replaced.
        trim_margin_s: How much of the log is kept behind the snapshot.
        heartbeat_ttl_s: Time without a heartbeat after which a replica has left.
    """

    url: str
    namespace: str
    replica: str
    flush_interval_s: float = 0.003
    buffer_ops_max: int = 100_000
    buffer_bytes_max: int = 64 << 20
    snapshot_interval_s: float = 10.0
    trim_margin_s: float = TRIM_MARGIN_S
    heartbeat_ttl_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Warming:
    """How far a replica is with what it reads at its start.

    Attributes:
        phase: ``connect``, then ``snapshot``, then ``log``.
        progress: Of this phase, 0 to 1.
    """

    phase: Literal["connect", "snapshot", "log"]
    progress: float


@dataclass(frozen=True, slots=True)
class LogStatus:
    """How well this replica shares.

    Attributes:
        connected: A session is running.
        degraded_reason: Why Redis does not do its work; None if it does.
        lag_s: Age of the newest entry of another replica when it was applied; 0 when idle.
        snapshot_age_s: Age of the newest snapshot; None if there is none.
        buffered_ops: Own operations that Redis has not acknowledged.
        dropped_ops: Own operations dropped since the start.
        skipped_ops: Operations skipped since the start, by reason (`router.shared.ports.SkipReason`).
        replicas: Ids of the replicas that are alive, this one included.
        ready: The log had once been read to its end: this replica is as warm as the others.
        warming: What it still reads before that; None if nothing.
        onward_ops: Placements that this replica published with the new part of their prompt.
        unknown_paths: Placements of others that go on from a prompt that this replica had to ask for.
    """

    connected: bool
    degraded_reason: str | None
    lag_s: float
    snapshot_age_s: float | None
    buffered_ops: int
    dropped_ops: int
    skipped_ops: Mapping[SkipReason, int]
    replicas: tuple[str, ...]
    ready: bool
    warming: Warming | None
    onward_ops: int = 0
    unknown_paths: int = 0
