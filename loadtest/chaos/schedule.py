"""Schedule of faults: a pure function of a seed.

    act 1                                     act 2
    calm | strikes .......... | recovery     | calm | strikes ...
         | strike A --------|                       the load pauses between acts, and nothing may be left
         |     strike B --|

An act has one strike or, every other time, several that overlap. Kinds come from a shuffled bag that is
refilled when empty, so each comes equally often. Strikes of one act never share a group or a target, since
they would mend each other's damage. `loadtest.chaos.fault_injector` has the faults behind the names.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

CALM_S = 3.0
RECOVERY_S = 10.0
PAUSE_S = 3.0
OVERLAP_SHARE = 0.5
OVERLAPPING_MAX = 4
LATER_S = 2.0
"""Greatest time between the starts of overlapping strikes."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault, as far as a schedule knows it.

    Attributes:
        group: Part of the system, for ``--only``.
        targets: One of which is drawn.
        lasts_s: Range of its duration; equal bounds for one that is over at once.
    """

    name: str
    group: str
    targets: Sequence[str]
    lasts_s: tuple[float, float] = (3.0, 7.0)


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault of a run: ``at_s`` seconds after its start, ``lasts_s`` until it is mended."""

    at_s: float
    kind: str
    target: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:7.1f} s  {self.kind:<28} {self.target:<8} for {self.lasts_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Act:
    """Strikes that belong together, by time, with calm before and recovery after; numbered from 1."""

    number: int
    strikes: tuple[Strike, ...]

    @property
    def ends_s(self) -> float:
        """End of the last strike, seconds after the run began."""
        return max(strike.at_s + strike.lasts_s for strike in self.strikes)


def schedule(kinds: Sequence[FaultKind], seconds: float, seed: int) -> list[Act]:
    """Plan a run of some seconds, within which the last act ends.

    The order of the kinds matters as the seed does.
    """
    assert kinds
    chance = random.Random(f"schedule/{seed}")
    bag = _bag(kinds, chance)
    acts: list[Act] = []
    begins_s = 0.0
    while True:
        act = _act(len(acts) + 1, begins_s + CALM_S, bag, chance)
        begins_s = act.ends_s + RECOVERY_S + PAUSE_S
        if begins_s > seconds and acts:
            return acts
        acts.append(act)


def printed(acts: Sequence[Act]) -> Iterator[str]:
    """The lines of ``--plan``."""
    for act in acts:
        yield from (f"act {act.number:<3} {strike}" for strike in act.strikes)


def counted(acts: Sequence[Act], kinds: Sequence[FaultKind]) -> Mapping[str, int]:
    """Number of strikes of each kind, 0 included."""
    counts = {kind.name: 0 for kind in kinds}
    for act in acts:
        for strike in act.strikes:
            counts[strike.kind] += 1
    return counts


def _act(number: int, at_s: float, bag: Iterator[FaultKind], chance: random.Random) -> Act:
    wanted = chance.randint(2, OVERLAPPING_MAX) if chance.random() < OVERLAP_SHARE else 1
    strikes: list[Strike] = []
    taken: set[str] = set()
    for _ in range(wanted):
        kind = next(bag)
        target = chance.choice(kind.targets)
        lasts_s = round(chance.uniform(*kind.lasts_s), 1)
        later_s = round(chance.uniform(0.0, LATER_S), 1) if strikes else 0.0
        if taken & {kind.group, target}:
            continue
        taken |= {kind.group, target}
        strikes.append(Strike(round(at_s + later_s, 1), kind.name, target, lasts_s))
    return Act(number, tuple(sorted(strikes, key=lambda strike: strike.at_s)))


def _bag(kinds: Sequence[FaultKind], chance: random.Random) -> Iterator[FaultKind]:
    while True:
        yield from chance.sample(kinds, len(kinds))
