"""Settings of the shared state, and its status."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from policies import setting
from router.shared.ports import SkipReason
from router.shared.snapshot import TRIM_MARGIN_S
from router.values import RedisUrl


@dataclass(frozen=True)
class SharingRules:
    """The log that replicas share through Redis."""

    redis_url: RedisUrl = setting(
        "",
        "Redis or Valkey that replicas share: redis://[USER:PASSWORD@]HOST[:PORT][/DB], unix:///PATH, "
        "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE or redis+cluster://HOST:PORT,HOST:PORT; with rediss "
        "instead of redis over TLS. User and password are the data server's; those of the Sentinels follow "
        "as ?sentinel_username= and ?sentinel_password=, TLS files as ?ssl_ca_certs=, ?ssl_certfile= and "
        "?ssl_keyfile=. "
        "Empty: a Valkey of our own is started, which only the processes of this host share.",
        common=True,
    )
    redis_url_file: str = setting(
        "",
        "File with that URL, in place of shared.redis_url, since it holds a password. Read at the start.",
    )
    namespace: str = setting(
        "default",
        "Name of the fleet: replicas with the same name and Redis share their state.",
        allowed="1 to 64 letters, digits, '.', '_' or '-'",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        common=True,
    )
    replica_id: str = setting(
        "",
        "Name of this replica in the log, unique in the namespace; processes beyond the first append "
        "their number. Empty: made from the host name, the process id and random bits.",
        allowed="up to 64 letters, digits, '.', '_' or '-'",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
    )
    flush_interval_ms: float = setting(
        3.0,
        "Pause between two flushes to Redis, in milliseconds: operations that come meanwhile go together. "
        "Longer saves CPU and makes siblings learn later. The first operation after a quiet moment goes at "
        "once. Among more than eight replicas it is at least 1 ms for each one more.",
        ge=0,
        le=1000,
    )
    heartbeat_ttl_s: float = setting(
        3.0,
        "Time without a heartbeat after which siblings drop a replica's requests in flight, in seconds. It "
        "is refreshed at least four times as often.",
        ge=0.5,
        le=60,
    )
    snapshot_interval_s: float = setting(
        10.0,
        "Time between two snapshots, in seconds. Shorter makes new replicas warm sooner and costs CPU.",
        ge=1,
    )
    buffer_ops_max: int = setting(
        100_000,
        "Most operations kept while Redis is gone; the oldest are dropped and counted. The default is a "
        "minute at 500 requests per second.",
        ge=1000,
    )

    trim_margin_s: ClassVar[float] = TRIM_MARGIN_S
    """Seconds of the log that are kept behind the snapshot."""

    def __post_init__(self) -> None:
        """Refuse two sources of the URL."""
        if self.redis_url and self.redis_url_file:
            raise ValueError("give redis_url or redis_url_file, not both")


@dataclass(frozen=True, slots=True)
class Warming:
    """Progress of a replica in reading at its start.

    Attributes:
        phase: ``connect``, then ``snapshot``, then ``log``.
        progress: Progress of this phase, 0 to 1.
    """

    phase: Literal["connect", "snapshot", "log"]
    progress: float


@dataclass(frozen=True, slots=True)
class LogStatus:
    """State of sharing at this replica.

    Attributes:
        connected: A session is running.
        degraded_reason: Reason why Redis does not do its work; None if it does.
        lag_s: Age of the newest entry of another replica when it was applied; 0 when idle.
        snapshot_age_s: Age of the newest snapshot; None if there is none.
        buffered_ops: Own operations that Redis has not acknowledged.
        dropped_ops: Own operations dropped since the start.
        skipped_ops: Operations skipped since the start, by reason (`router.shared.ports.SkipReason`).
        replicas: Ids of the replicas that are alive, this one included.
        ready: The log had once been read to its end: this replica is as warm as the others.
        warming: Part that it still reads before that; None if nothing.
        onward_ops: Placements that this replica published with the new part of their prompt.
        unknown_paths: Placements of others that go on from a prompt that this replica had to ask for.
        differing: Kinds of register of which living replicas have known different words for ten seconds, and
            those replicas (`router.shared.agreement`).
        lost: Ids of replicas that fell silent in the last ten minutes and have not come back.
        published_again: Times that this replica published a kind of register again for that reason.
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
    differing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    published_again: Mapping[str, int] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
