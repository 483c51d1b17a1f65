"""Figures as text: the same in the table, the page and the charts."""

import math

_SPACE = "\N{NO-BREAK SPACE}"


def seconds(value: float) -> str:
    """A time in three digits, for example ``85 ms``, ``1.24 s`` or ``213 s``; ``-`` if there is none."""
    if not math.isfinite(value):
        return "-"
    if value < 0.9995:
        return f"{1000 * value:.3g}{_SPACE}ms"
    return f"{value:.3g}{_SPACE}s" if value < 999.5 else f"{value:,.0f}{_SPACE}s"


def percent(ratio: float) -> str:
    """A ratio, for example ``87.3 %``; ``-`` if there is none."""
    return f"{100 * ratio:.1f}{_SPACE}%" if math.isfinite(ratio) else "-"


def points(ratio: float) -> str:
    """A difference of two ratios in hundredths, for example ``3.2``."""
    return f"{100 * ratio:.1f}" if math.isfinite(ratio) else "-"
