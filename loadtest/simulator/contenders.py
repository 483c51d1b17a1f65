"""Policies to compare, as on the command line: ``expected_cost,affinity:match_weight=2,random``.

Options follow their policy, each behind a colon. ``all`` is every policy of the registry with its defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies import POLICIES, make_policy


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, and its options that differ from the defaults."""

    policy: str
    chosen: tuple[tuple[str, float], ...] = ()

    @property
    def options(self) -> Mapping[str, float]:
        """The options by name."""
        return dict(self.chosen)

    @property
    def label(self) -> str:
        """Name in tables: the policy and its changed options, such as ``affinity match_weight=2``."""
        return " ".join([self.policy, *(f"{name}={value:g}" for name, value in self.chosen)])


def read_contenders(text: str) -> list[Contender]:
    """Read a list of policies.

    Raises:
        ValueError: An unknown policy or option, a value out of range, or one policy twice; the message says
            what is valid.
    """
    contenders: list[Contender] = []
    for entry in text.split(","):
        contenders += _all() if entry.strip() == "all" else [_contender(entry)]
    labels = [contender.label for contender in contenders]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is there twice")
    return contenders


def _all() -> list[Contender]:
    return [Contender(name) for name in POLICIES]


def _contender(entry: str) -> Contender:
    name, *texts = (part.strip() for part in entry.split(":"))
    options = {}
    for text in texts:
        option, _, value = text.partition("=")
        try:
            options[option] = float(value)
        except ValueError:
            raise ValueError(
                f"{text!r} is not an option and its value, as in affinity:match_weight=2"
            ) from None
    make_policy(name, options)
    return Contender(name, tuple(options.items()))
