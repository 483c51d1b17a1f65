"""Length buckets: workers of their own for prompts of one range of lengths, and the cost of leaving them.

Two things let a long prompt slow the short ones beside it in an engine: ranks of data-parallel attention
wait for the longest of them in every step, and a chunk that mixes both costs as much as the long context
(MiMo-V2.5 paper, arXiv:2607.13095, 5.2, whose ranges are the default). A bucket counts prompt plus expected
output, not uncached tokens: the cost of a token depends on all tokens before it.

    home       workers of the request's bucket, and those that belong to none and take any length
    spill up   a worker of a longer bucket: the request is dragged by the long ones beside it
    spill down a worker of a shorter bucket: the request drags the short ones beside it
    no worker  longer than the last bucket, and no worker takes any length: rejected

**The price of a spill.** A step of an engine with R ranks costs ``b·T + R·max(attention of a rank)`` for T
tokens, since the ranks wait for the longest, and a token behind c others attends for ``b·c/c0`` (theory B1,
E1: a token costs ``b·(1 + c/c0)``). With T/R tokens on each rank, all T cost what those behind the longest
context cost, ``b·T·(1 + max(c)/c0)``. So while a token behind x is prefilled beside others behind c', it
costs the engine ``b·|x - c'|/c0`` more than in steps of their own kind: the visitor's token if c' is the
longer context, a neighbour's if x is (with two ranks; of R - 1 neighbours with more). That happens for as
much of the time as a neighbour is beside it, the utilisation rho:

    price = rho·b/c0 · integral of |x - c'| from c to c + u      seconds that the worker is busy for longer

for u uncached tokens behind c, with the others in the middle of their bucket and rho no lower than
`BUSY_RATIO_MIN`. It is part of the work x of that placement, so an idle neighbour is almost free and a
conversation stays where its cache is while its additions are short. Chunks that mix lengths on one rank have
the same price: they share their step. That a long prefill also stands in front of more requests where short
ones come is priced by kappa, which is measured for each bucket (`policies.estimates.costs.congestion_per_s`).

**Without buckets** any worker takes any length, up to the bound that its engine reports. Where engines of one
model have different limits, a request that exceeds some of them (`LengthClass.exceeds_tokens`) is for the
workers that hold more, and waits in a lane of its own.
"""

import itertools
from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from policies.estimates.costs import Number
from radix import parsed_whole

BUCKET_LABEL = "bucket"
"""Label of a worker: the name or the number of its bucket."""

ANY_BUCKET = -1
"""Bucket of a worker that takes any length, and of requests while no worker belongs to a bucket."""


class LengthClass(NamedTuple):
    """Requests that the same workers may take by their length.

    Attributes:
        bucket: Number of their length bucket; `ANY_BUCKET` while there are none.
        exceeds_tokens: Limit of engines that cannot hold them, in tokens; 0 for none. Only without buckets.
    """

    bucket: int = ANY_BUCKET
    exceeds_tokens: int = 0


ANY_LENGTH = LengthClass()
"""Requests whose length does not matter."""

BUSY_RATIO_MIN = 0.1
"""An idle worker may have company soon. Without this, all idle workers would cost the same, and conversations
would begin, and then stay, anywhere. [guess] any small number does that."""

_KI = 1024


@dataclass(frozen=True, slots=True)
class LengthBuckets:
    """Ranges of lengths, each with its upper bound.

    Attributes:
        tokens_max: Upper bounds in ascending order, inclusive, tokens of prompt plus expected output.
    """

    tokens_max: tuple[int, ...] = (64 * _KI, 256 * _KI, 1024 * _KI)

    def __post_init__(self) -> None:
        """Refuse bounds that are none.

        Raises:
            ValueError: There is none, or they do not ascend from above 0.
        """
        bounds = (0, *self.tokens_max)
        if len(bounds) < 2 or any(low >= high for low, high in itertools.pairwise(bounds)):
            raise ValueError(f"bounds of length buckets must ascend from above 0, not {self.tokens_max}")

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self.tokens_max)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per bucket, for example ``64K-256K``."""
        bounds = (0, *self.tokens_max)
        return tuple(
            f"{_short(low)}-{_short(high)}" for low, high in zip(bounds, self.tokens_max, strict=False)
        )

    @property
    def middle_tokens(self) -> tuple[float, ...]:
        """Middle of each range: the context that a request there is taken to have."""
        return tuple((low + high) / 2 for low, high in itertools.pairwise((0, *self.tokens_max)))

    def index(self, tokens: float) -> int | None:
        """Number of the bucket for a length; None if it exceeds the last one."""
        index = bisect_left(self.tokens_max, tokens)
        return index if index < len(self.tokens_max) else None

    def labelled(self, label: str) -> int:
        """Number of the bucket that a label names; `ANY_BUCKET` if it names none."""
        if label in self.names:
            return self.names.index(label)
        number = parsed_whole(label, len(self.tokens_max) - 1) if self.tokens_max else None
        return ANY_BUCKET if number is None else number


def spill_s(token_s: Number, middle_tokens: Number, uncached_tokens: Number, cached_tokens: Number) -> Number:
    """Seconds for which a visitor keeps a worker of another bucket busy beyond its own prefill (see above).

    Args:
        token_s: ``rho·b/c0`` of the worker, seconds per token and token of context; 0 at home.
        middle_tokens: c' of the worker's bucket.
        uncached_tokens: u of the visitor.
        cached_tokens: c of the visitor.
    """
    first, last = cached_tokens - middle_tokens, cached_tokens + uncached_tokens - middle_tokens
    return token_s * (last * abs(last) - first * abs(first)) * 0.5


def _short(tokens: int) -> str:
    """A round number in Ki or Mi tokens, any other as it is."""
    for unit, size in (("M", _KI * _KI), ("K", _KI)):
        if tokens and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)
