"""Length buckets: workers of their own for prompts of one range of lengths.

Two things let a long prompt slow the short ones beside it in an engine: ranks of data-parallel attention
wait for the longest of them in every step, and a chunk that mixes both costs what the long context costs
(MiMo-V2.5 paper, arXiv:2607.13095, 5.2, whose ranges are the default). A bucket counts prompt plus expected
output, not uncached tokens: what a token costs depends on everything before it.

Which workers belong to a bucket is their label ``bucket``, one of `LengthBuckets.names`.
"""

import itertools
from bisect import bisect_left
from dataclasses import dataclass

BUCKET_LABEL = "bucket"

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

    @property
    def names(self) -> tuple[str, ...]:
        """One name per bucket, for example ``64K-256K``."""
        bounds = (0, *self.tokens_max)
        return tuple(
            f"{_short(low)}-{_short(high)}" for low, high in zip(bounds, self.tokens_max, strict=False)
        )

    def index(self, tokens: float) -> int | None:
        """Number of the bucket for a length; None if it exceeds the last one."""
        index = bisect_left(self.tokens_max, tokens)
        return index if index < len(self.tokens_max) else None


def _short(tokens: int) -> str:
    """A round number in Ki or Mi tokens, any other as it is."""
    for unit, size in (("M", _KI * _KI), ("K", _KI)):
        if tokens and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return str(tokens)
