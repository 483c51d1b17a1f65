"""Errors of predictions by kind of request, in engine blocks.

| column | meaning |
| --- | --- |
| n | requests |
| reused | blocks that the engine reused, mean |
| error | mean absolute error, blocks |
| over | share of requests with a prediction above the reuse |

The predictions are the gateway's window-safe length, its plain prefix match (of a router without windows),
and the simulator's model of the engine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadtest.bench.window_truth.asking import Truth
from loadtest.bench.window_truth.script import ANSWERED, KINDS
from loadtest.study.tables import table

ERROR_BLOCKS_MAX = 1.0
OVER_RATIO_MAX = 0.01
"""Promised bound for the window-safe length."""

PREDICTIONS: dict[str, Callable[[Truth], int]] = {
    "window-safe": lambda truth: truth.gateway.reusable,
    "match": lambda truth: truth.gateway.matched,
    "simulator": lambda truth: truth.simulated.reusable,
}


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute error of one prediction, and the share of requests of which it promised too much."""

    error_blocks: float
    over_ratio: float

    @property
    def kept(self) -> bool:
        """True if that is as good as promised."""
        return self.error_blocks <= ERROR_BLOCKS_MAX and self.over_ratio <= OVER_RATIO_MAX


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table; ``errors`` by `PREDICTIONS`."""

    name: str
    requests: int
    reused_blocks: float
    errors: dict[str, Errors]


def lines(truths: Sequence[Truth], block_tokens: int) -> list[Line]:
    """The table: each kind, those that only share prompts, those that come back to answers, all."""
    named: list[tuple[str, list[Truth]]] = [
        (kind, [truth for truth in truths if truth.asked.kind == kind]) for kind in KINDS
    ]
    answered = [truth for truth in truths if truth.asked.kind in ANSWERED]
    named.append(("prompts alone", [truth for truth in truths if truth.asked.kind not in ANSWERED]))
    named.append(("with answers", answered))
    named.append(("all", list(truths)))
    return [_line(name, some, block_tokens) for name, some in named if some]


def markdown(lines: Iterable[Line]) -> str:
    """The table as people read it."""
    heads = [head for name in PREDICTIONS for head in (f"{name}: error", "over")]
    rows = (
        (
            line.name,
            str(line.requests),
            f"{line.reused_blocks:.2f}",
            *(
                cell
                for each in line.errors.values()
                for cell in (f"{each.error_blocks:.3f}", f"{each.over_ratio:.1%}")
            ),
        )
        for line in lines
    )
    return table(("requests", "n", "reused", *heads), rows)


def _line(name: str, truths: Sequence[Truth], block_tokens: int) -> Line:
    reused = sum(truth.cached_tokens for truth in truths) / len(truths) / block_tokens
    errors = {}
    for prediction, tokens in PREDICTIONS.items():
        off = [tokens(truth) - truth.cached_tokens for truth in truths]
        errors[prediction] = Errors(
            sum(map(abs, off)) / len(off) / block_tokens, sum(each > 0 for each in off) / len(off)
        )
    return Line(name, len(truths), reused, errors)
