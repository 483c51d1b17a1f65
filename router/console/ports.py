"""What the console may see of a gateway: the one port between the fleet and the page.

`router.admin.fleet_view` answers from the running process; tests answer from what they make up. Values are
small and compared by value, since only what changed is sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class WorkerFacts(NamedTuple):
    """What seldom changes of a worker. The field names are what the page calls them.

    Attributes:
        key: Small number that names the worker in `WorkerLoad`; it may be another worker's later.
        id: Its id.
        role: ``plain``, ``prefill``, ``decode`` or ``encode``.
        site: Where it stands; empty if sites are not named.
        bucket: Its length bucket; empty for any length.
        state: ``starting``, ``healthy``, ``unhealthy`` or ``draining``.
        circuit: ``closed``, ``half_open`` or ``open``.
        engine: ``sglang``, ``vllm`` or empty.
        models: What it serves; empty while it has not said.
        capacity_tokens: KV capacity, as told or assumed; 0 if neither.
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
    """What changes all the time.

    Attributes:
        key: `WorkerFacts.key`.
        backlog_s: Seconds of prefill that all replicas reserved on it, in hundredths.
        inflight: Requests in flight, of all replicas.
        held_percent: Share of its capacity that is believed to be cached, in whole percent; -1 while nobody
            has said what its capacity is.
    """

    key: int
    backlog_s: float
    inflight: int
    held_percent: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of one replica since it started.

    Attributes:
        requests: That ended, with any outcome.
        failed: Of those, the ones that a worker failed.
        rejected: Of those, the ones that were sent away: no room, no time left, a limit.
        prompt_tokens: Of answers whose engine says what it had cached.
        cached_tokens: Of those tokens, the ones that were cached.
        ttft_counts: Streams by time to first token, one more than `ttft_bounds_s`: the last is beyond all.
        ttft_bounds_s: Upper bounds of the former, rising.
    """

    requests: int = 0
    failed: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_counts: tuple[int, ...] = ()
    ttft_bounds_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica.

    Attributes:
        replica: Its id.
        counters: Its totals; None if its word does not reach us.
        shown: What the page lists of it, beside its id.
    """

    replica: str
    counters: Counters | None
    shown: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What may be wrong, as far as it is known to a replica.

    Attributes:
        redis: Why Redis does not do its work; None if it does.
        warming: Phase and progress (0 to 1) of reading the shared state at the start; None when done.
        buffered_ops: Own operations that Redis has not acknowledged.
        dropped_ops: Own operations that were dropped since the start.
        lag_s: How late operations of other replicas arrive.
        keys: Why the tenants' keys file cannot be used; None if it can.
        limits: Why tenants' limits are kept by fair shares; None if they are not.
        rejected_per_s: Requests that all replicas send away, per second.
        failed_per_s: Requests that workers fail, per second.
        links: States of links between sites, by name.
        ending: Whether this process was told to end.
        other: More troubles, said by whoever knows them: code and sentence.
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
    links: Mapping[str, str] | None = None
    ending: bool = False
    other: Sequence[tuple[str, str]] = ()


class Decisions(NamedTuple):
    """Decisions since a cursor.

    Attributes:
        told: The newest of them, the oldest first, as the page shows them.
        skipped: How many more there were.
        cursor: Where to go on.
    """

    told: Sequence[Mapping[str, Any]]
    skipped: int
    cursor: int


class FleetView(Protocol):
    """What the console asks. Nothing here changes anything."""

    @property
    def replica(self) -> str:
        """Who is asked."""

    @property
    def version(self) -> str:
        """Of the gateway."""

    def facts(self) -> Sequence[WorkerFacts]:
        """All workers, in order of their ids."""

    def loads(self, facts: Sequence[WorkerFacts]) -> Sequence[WorkerLoad]:
        """What they have to do now, in the same order."""

    def waiting(self) -> int:
        """Requests that wait, of all replicas."""

    def conditions(self) -> Conditions:
        """What may be wrong; the rates are left out."""

    async def replicas(self) -> Sequence[ReplicaView]:
        """All replicas that can be seen, this one included, in order of their ids."""

    async def sections(self, *, slow: bool) -> Mapping[str, Any]:
        """What the page shows beside the map, by name: values for JSON.

        Args:
            slow: Ask also for what takes milliseconds to work out, which is seldom done.
        """

    def decisions(self, cursor: int | None, most: int) -> Decisions:
        """The newest decisions of this replica.

        Args:
            cursor: Where to go on; None for the newest that there are.
            most: How many are told at most.
        """
