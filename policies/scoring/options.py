"""Options of a policy: a frozen dataclass whose fields are numbers with a range.

The registry (`policies.scoring`) reads names, defaults and ranges from the dataclass, for refusals and the
documentation.
"""

from collections.abc import Mapping
from dataclasses import field, fields
from math import inf, isfinite
from typing import Any


def option(default: float, *, low: float = 0.0, high: float = inf) -> Any:
    """Declare one option of a dataclass: finite and in ``[low, high]``."""
    return field(default=default, metadata={"low": low, "high": high})


def checked_options(policy: str, kind: type[Any] | None, values: Mapping[str, float]) -> Any:
    """Make the options of a policy from a user's values; None if ``kind``, its dataclass, is None.

    Raises:
        ValueError: An unknown name, or a value out of range.
    """
    declared = {} if kind is None else {entry.name: entry for entry in fields(kind)}
    for name, value in values.items():
        if name not in declared:
            raise ValueError(
                f"policy {policy!r} has no option {name!r}; it has: {', '.join(sorted(declared)) or 'none'}"
            )
        low, high = declared[name].metadata["low"], declared[name].metadata["high"]
        if not (isfinite(value) and low <= value <= high):
            wanted = f"at least {low:g}" if high == inf else f"between {low:g} and {high:g}"
            raise ValueError(f"option {name!r} of policy {policy!r} must be {wanted}, not {value!r}")
    return None if kind is None else kind(**values)
