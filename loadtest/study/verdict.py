"""How the default policy does against the best peer, scenario by scenario.

A ratio below 1 means that the default is faster. The best peer is chosen for each scenario and each figure
on its own, so it is no policy that anybody could run: a harder opponent than any of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from loadtest.study.design import OURS, PEERS, Cell
from loadtest.study.results import Row, by_scenario

MEAN, P90 = "ttft_mean_s", "ttft_p90_s"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The default against the best of the peers on one figure; less is better.

    Attributes:
        ours_s: The default's figure.
        peer: Label of the best peer.
        peer_s: Its figure.
    """

    ours_s: float
    peer: str
    peer_s: float

    @property
    def ratio(self) -> float:
        """Ours over the peer's."""
        return self.ours_s / self.peer_s


@dataclass(frozen=True, slots=True)
class Verdict:
    """One scenario.

    Attributes:
        scenario: Cell without a policy.
        mean: Comparison of mean time to first token.
        p90: Comparison of its 90th percentile.
        share_of_pooled: The default's reuse over that of one LRU cache as large as all; NaN if that is 0.
        floor_s: Mean time to first token with infinite caches and no queue.
    """

    scenario: Cell
    mean: Comparison
    p90: Comparison
    share_of_pooled: float
    floor_s: float


def verdicts(rows: Iterable[Row]) -> list[Verdict]:
    """One for every scenario in which the default and at least one peer ran, in their order."""
    found = []
    for scenario, by_label in by_scenario(rows).items():
        ours, peers = by_label.get(OURS), [by_label[peer] for peer in PEERS if peer in by_label]
        if ours is None or not peers:
            continue
        found.append(
            Verdict(
                scenario=scenario,
                mean=_compare(ours, peers, MEAN),
                p90=_compare(ours, peers, P90),
                share_of_pooled=ours.number("share_of_pooled"),
                floor_s=ours.number("floor_ttft_mean_s"),
            )
        )
    return found


def _compare(ours: Row, peers: list[Row], figure: str) -> Comparison:
    best = min(peers, key=lambda row: row.number(figure))
    return Comparison(ours.number(figure), best.cell.label, best.number(figure))
