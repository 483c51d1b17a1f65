"""Figures as text: the same in the table, the page and the charts."""

import math
from collections.abc import Sequence

from policies import LengthBuckets

_SPACE = "\N{NO-BREAK SPACE}"


def seconds(value: float) -> str:
    """A time in three digits, for example ``85 ms``, ``1.24 s`` or ``213 s``; ``-`` if there is none."""
    if not math.isfinite(value):
        return "-"
    if value == 0.0:
        return f"0{_SPACE}ms"
    if value < 0.9995:
        return f"{1000 * value:#.3g}".rstrip(".") + f"{_SPACE}ms"
    return (f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:,.0f}") + f"{_SPACE}s"


def tick(value: float) -> str:
    """A time at an axis: a round number in as few digits as it has, for example ``200 ms`` or ``5 s``."""
    return f"{1000 * value:g}{_SPACE}ms" if value < 1 else f"{value:,g}{_SPACE}s"


def percent(ratio: float) -> str:
    """A ratio, for example ``87.3 %``; ``-`` if there is none."""
    return f"{100 * ratio:.1f}{_SPACE}%" if math.isfinite(ratio) else "-"


def points(ratio: float) -> str:
    """A difference of two ratios in hundredths, for example ``3.2``."""
    return f"{100 * ratio:.1f}" if math.isfinite(ratio) else "-"


def bucket_shares(bucket_workers: Sequence[tuple[int, int]]) -> str:
    """Workers by length bucket, at least one, for example ``0-64K: 5, 64K-256K: 3``."""
    names = LengthBuckets(tuple(bound for bound, _ in bucket_workers)).names
    return ", ".join(f"{name}: {count}" for name, (_, count) in zip(names, bucket_workers, strict=True))
