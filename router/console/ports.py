"""Port between the fleet and the console's page.

`router.admin.fleet_view` answers from the running process; tests make up answers. Values are small and
compared by value, since only changes are sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class WorkerFacts(NamedTuple):
    """Facts of a worker that seldom change. The page uses the field names.

    Attributes:
        key: Small number that names the worker in `WorkerLoad`; another worker may have it later.
        role: ``plain``, ``prefill``, ``decode`` or ``encode``.
        site: Empty if sites are not named.
        bucket: Its length bucket; empty for any length.
        state: ``starting``, ``healthy``, ``unhealthy`` or ``draining``.
        circuit: ``closed``, ``half_open`` or ``open``.
        engine: ``sglang``, ``vllm`` or empty.
        models: Served models; empty while unknown.
        capacity_tokens: KV capacity, as reported or assumed; 0 for neither.
    """

    key: int
    id: str
    role: str
    site: str
    bucket: str
    state: str
    circuit: str
    engine: str
    models: tuple[str, ...]
    capacity_tokens: int


class WorkerLoad(NamedTuple):
    """Load of a worker.

    Attributes:
        key: `WorkerFacts.key`.
        backlog_s: Prefill that all replicas reserved on it, in seconds, in steps of a hundredth.
        inflight: Requests in flight, of all replicas.
        held_percent: Share of its capacity believed to be cached, in whole percent; -1 for unknown capacity.
    """

    key: int
    backlog_s: float
    inflight: int
    held_percent: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of one replica since it started.

    Attributes:
        requests: Ended requests, with any outcome.
        failed: Those that a worker failed.
        rejected: Those rejected: no room, no time left, a limit.
        limited: Those answered with 429: a limit, or a full queue.
        unavailable: Those answered with 503: no worker takes them, or this replica ends.
        refused: Those that a worker answered with a 4xx, such as 404 for a model that it does not serve.
        prompt_tokens: Prompt tokens of answers whose engine reports its cached tokens.
        cached_tokens: Cached tokens among them.
        ttft_counts: Streams by time to first token; the last entry is beyond all `ttft_bounds_s`.
        ttft_bounds_s: Upper bounds of the former, rising.
        tpot_counts, tpot_bounds_s: The same of their times per output token.
        all_prompt_tokens, output_tokens: Tokens of all answers, as engines report.
    """

    requests: int = 0
    failed: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_counts: tuple[int, ...] = ()
    ttft_bounds_s: tuple[float, ...] = ()
    limited: int = 0
    unavailable: int = 0
    tpot_counts: tuple[int, ...] = ()
    tpot_bounds_s: tuple[float, ...] = ()
    all_prompt_tokens: int = 0
    output_tokens: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica, with its totals (None if its vitals do not arrive) and further fields to show."""

    replica: str
    counters: Counters | None
    shown: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions that may be wrong, as far as a replica knows them.

    Attributes:
        redis: Fault of Redis; None if it works.
        warming: Phase and progress (0 to 1) of reading the shared state at the start; None when done.
        buffered_ops: Own operations that Redis has not acknowledged.
        dropped_ops: Own operations that were dropped since the start.
        lag_s: Delay of other replicas' operations.
        keys: Fault of the tenants' keys file; None without one.
        limits: Reason why tenants' limits are kept by fair shares; None if they are not.
        rejected_per_s: Rejected requests of all replicas, per second.
        failed_per_s: Requests that workers fail, per second.
        refused_ratio: Share of the ended requests that workers refuse, 0 to 1.
        links: States of links between sites, by name.
        ending: True if this process was told to end.
        lost_replicas: Replicas that fell silent in the last minutes and have not come back.
        other: Code and sentence of more troubles.
    """

    redis: str | None = None
    warming: tuple[str, float] | None = None
    buffered_ops: int = 0
    dropped_ops: int = 0
    lag_s: float = 0.0
    keys: str | None = None
    limits: str | None = None
    rejected_per_s: float = 0.0
    failed_per_s: float = 0.0
    refused_ratio: float = 0.0
    links: Mapping[str, str] | None = None
    ending: bool = False
    lost_replicas: Sequence[str] = ()
    other: Sequence[tuple[str, str]] = ()


class Decisions(NamedTuple):
    """The newest decisions since a cursor, the oldest first, and the number of skipped ones."""

    told: Sequence[Mapping[str, Any]]
    skipped: int
    cursor: int


class FleetView(Protocol):
    """Questions of the console; none changes anything."""

    @property
    def replica(self) -> str:
        """Id of the asked replica."""

    @property
    def version(self) -> str:
        """Version of the gateway."""

    def facts(self) -> Sequence[WorkerFacts]:
        """All workers, in order of their ids."""

    def loads(self, facts: Sequence[WorkerFacts]) -> Sequence[WorkerLoad]:
        """Loads of the workers, in the order of their facts."""

    def waiting(self) -> int:
        """Requests that wait, of all replicas."""

    def conditions(self) -> Conditions:
        """Conditions that may be wrong, without the rates."""

    async def replicas(self) -> Sequence[ReplicaView]:
        """All replicas that can be seen, this one included, in order of their ids."""

    async def sections(self, *, slow: bool) -> Mapping[str, Any]:
        """Sections of the page beside the map, by name, as JSON; ``slow`` adds the slow ones."""

    def decisions(self, cursor: int | None, most: int) -> Decisions:
        """At most ``most`` decisions of this replica from a cursor on; None for the newest."""
