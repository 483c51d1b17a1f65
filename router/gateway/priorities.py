"""Classes of requests by urgency.

The first of these that a request has counts:

    x-priority: high | normal | low | NUMBER      header, the name of a class or a number
    "priority": NUMBER                            body; the engines' own field, passed on to them, too
    "service_tier": "priority" | "flex" | ...     body; OpenAI's field

A number counts classes up from the default one, at most to the last: of high, normal and low, 1 is high, -1
is low. More is more urgent, as in SGLang (``schedule_low_priority_values_first`` is off by default); vLLM has
it the other way round, which ``queue.low_values_first`` follows. A wrong header is refused, since it was
written for us; an unknown ``service_tier`` means the default: elsewhere the field means other things.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from router.errors import ClientError

PRIORITY_HEADER = b"x-priority"

_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")

_TIERS = {
    "priority": 1,
    "scale": 1,
    "auto": 0,
    "default": 0,
    "standard": 0,
    "standard_only": 0,
    "flex": -1,
    "batch": -1,
}
"""Service tiers of OpenAI and Anthropic as numbers: bought speed is urgent, a discount is not."""


def weights(
    shares: Mapping[str, float], tenant_weight_of: Callable[[str], float] = lambda _: 1.0
) -> Callable[[str], float]:
    """Return the weights for `policies.Fairness`: of a class, or of a flow among those of its class.

    A class that only another replica knows has the least weight. Tenants are looked up by name.
    """
    least = min(shares.values())

    def weight_of(name: str) -> float:
        priority, is_flow, tenant = name.partition("/")
        return tenant_weight_of(tenant) if is_flow else shares.get(priority, least)

    return weight_of


class Priorities:
    """The classes of one gateway, the most urgent first; a lower number is more urgent if ``low_first``."""

    def __init__(self, names: Sequence[str], default: str, *, low_first: bool) -> None:
        assert default in names
        self.names = tuple(names)
        self._middle = self.names.index(default)
        self._sign = 1 if low_first else -1

    def named(self, header: bytes) -> str:
        """Return the class that the header names; `ClientError` if it names none, and is no number."""
        value = header.decode("latin-1").strip().lower()
        if value in self.names:
            return value
        if not _NUMBER.fullmatch(value):
            names = ", ".join(self.names)
            raise ClientError(
                f"{PRIORITY_HEADER.decode()}: {value[:100]!r} is none of {names}, and no number.",
                code="invalid_value",
                param=PRIORITY_HEADER.decode(),
            )
        return self._numbered(self._sign * int(value))

    def stated(self, number: int, tier: str) -> str:
        """Return the class that a body's ``priority`` (or 0) or ``service_tier`` (or empty) asks for."""
        if number:
            return self._numbered(self._sign * number)
        if tier in self.names:
            return tier
        return self._numbered(-_TIERS.get(tier, 0))

    def allowed(self, wanted: str, most: str) -> str:
        """Return the less urgent of the class asked for and the tenant's most urgent one (empty: any)."""
        return max(wanted, most, key=self.names.index) if most else wanted

    def _numbered(self, steps: int) -> str:
        return self.names[min(max(self._middle + steps, 0), len(self.names) - 1)]
