"""What a run of the chaos suite leaves on record: what struck, what was asked, measured and broken.

Times are seconds of the event loop's clock of the process that asks.
"""

from collections import Counter
from dataclasses import dataclass, field

from loadtest.chaos.fault_injector import Blame
from loadtest.chaos.schedule import Act, Strike


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that was broken.

    Attributes:
        promise: Which one.
        seen: What was seen instead.
        at_s: When; 0 for the run as a whole.
    """

    promise: str
    seen: str
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault as it really happened.

    Attributes:
        strike: As it was planned.
        group: Of its kind.
        blame: What clients may see of it.
        began_s: Before anything was done.
        ended_s: When it was mended: whoever was killed is back and ready.
        worker_id: What gateways call its target, if that is a worker.
    """

    strike: Strike
    group: str
    blame: Blame
    began_s: float
    ended_s: float
    worker_id: str = ""

    def overlaps(self, began_s: float, ended_s: float, grace_s: float) -> bool:
        """Whether it was felt at any time between two moments; it still is for a while when it is mended."""
        return began_s <= self.ended_s + grace_s and ended_s >= self.began_s


@dataclass(frozen=True, slots=True)
class Sample:
    """A replica's processes at one moment.

    Attributes:
        at_s: When.
        replica: Its name.
        life: Which of its lives, from 1.
        rss_bytes: Resident memory of all of them.
        open_files: Of all of them.
    """

    at_s: float
    replica: str
    life: int
    rss_bytes: int
    open_files: int


@dataclass(slots=True)
class ActSeen:
    """What was seen of one act.

    Attributes:
        act: What was to happen.
        began_s: When its calm began.
        struck: What happened.
        mended_s: When the last strike was mended.
        ends: How its requests ended.
        hit_ratio: Share of what sessions could find in caches that they found, in the calm.
        worst_ratio: The least of it in any window from the first strike on.
        recovery_s: From the mending to when it was as before; None if it was not in time.
        late_s: How late the event loop of the clients was at most.
        broken: Promises that were.
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
    """What was seen of a whole run.

    Attributes:
        seed: Of the run.
        cabled: Whether there were faults of the network.
        clients: How many asked.
        began_s: When the load began.
        seconds: How long it lasted.
        warm_ratio: As `ActSeen.hit_ratio`, before the first act.
        acts: One by one.
        ends: How all requests ended.
        sent: How many were sent.
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
        """How often each kind struck."""
        return Counter(struck.strike.kind for act in self.acts for struck in act.struck)

    @property
    def worst_recovery_s(self) -> float | None:
        """The longest recovery; None if one was not over in time."""
        times = [act.recovery_s for act in self.acts]
        return None if None in times else max((each for each in times if each is not None), default=0.0)
