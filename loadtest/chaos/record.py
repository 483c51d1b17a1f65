"""Record of a chaos run: faults, requests, measurements and broken promises.

Times are seconds of the event loop's clock of the process that asks.
"""

from collections import Counter
from dataclasses import dataclass, field

from loadtest.chaos.fault_injector import Blame
from loadtest.chaos.schedule import Act, Strike


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that was broken; ``at_s`` is 0 for the run as a whole."""

    promise: str
    seen: str
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault as it really happened.

    Attributes:
        group: Of its kind.
        blame: Allowed effect on clients.
        began_s: Before anything was done.
        ended_s: When it was mended, with all killed processes back and ready.
        worker_id: The gateways' name of its target, if that is a worker.
    """

    strike: Strike
    group: str
    blame: Blame
    began_s: float
    ended_s: float
    worker_id: str = ""

    def overlaps(self, began_s: float, ended_s: float, grace_s: float) -> bool:
        """True if it was felt between two moments, also for a while after it is mended."""
        return began_s <= self.ended_s + grace_s and ended_s >= self.began_s


@dataclass(frozen=True, slots=True)
class Sample:
    """A replica's processes at one moment.

    ``life`` counts from 1, memory and open files are of all of them.
    """

    at_s: float
    replica: str
    life: int
    rss_bytes: int
    open_files: int


@dataclass(slots=True)
class ActSeen:
    """Observations of one act.

    Attributes:
        mended_s: End of the last strike.
        hit_ratio: Share of their possible reuse that sessions found in the calm.
        worst_ratio: The least of it in any window from the first strike on.
        recovery_s: From the mending to the former ratio; None if it was not in time.
        late_s: Largest delay of the clients' event loop.
    """

    act: Act
    began_s: float
    struck: list[Struck] = field(default_factory=list)
    mended_s: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    hit_ratio: float = 0.0
    worst_ratio: float = 0.0
    recovery_s: float | None = 0.0
    late_s: float = 0.0
    broken: list[Broken] = field(default_factory=list)


@dataclass(slots=True)
class Record:
    """Observations of a whole run.

    Attributes:
        cabled: There were faults of the network.
        clients: Number of clients that asked.
        warm_ratio: As `ActSeen.hit_ratio`, before the first act.
        samples: Of memory and open files.
        counters: Metrics of replicas, over all their lives, as far as they were seen.
        broken: Promises that only the whole run can break.
    """

    seed: int
    cabled: bool
    clients: int
    began_s: float = 0.0
    seconds: float = 0.0
    warm_ratio: float = 0.0
    acts: list[ActSeen] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    samples: list[Sample] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    broken: list[Broken] = field(default_factory=list)

    @property
    def all_broken(self) -> list[Broken]:
        """Every promise that was broken, by time."""
        return [broken for act in self.acts for broken in act.broken] + self.broken

    @property
    def faults(self) -> Counter[str]:
        """Number of strikes of each kind."""
        return Counter(struck.strike.kind for act in self.acts for struck in act.struck)

    @property
    def worst_recovery_s(self) -> float | None:
        """The longest recovery; None if one was not over in time."""
        times = [act.recovery_s for act in self.acts]
        return None if None in times else max((each for each in times if each is not None), default=0.0)
