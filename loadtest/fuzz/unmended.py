"""Mends that can be taken out of a gateway, to see that the fuzzer finds what they mended."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unmended:
    """A finding, and how its mend is taken out of this process.

    Attributes:
        what: The finding.
        take_out: Takes it out; called before the gateway starts.
    """

    what: str
    take_out: Callable[[], None]


UNMENDED: dict[str, Unmended] = {}
