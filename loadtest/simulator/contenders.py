"""Policies to compare, as on the command line: ``expected_cost,affinity:match_weight=2,random``.

Options follow their policy, each behind a colon. ``all`` is every policy of the registry with its defaults.
A user's policy is named as in ``cacheway serve``, with the same options: ``my_package.rules:calm:weight=2``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies import POLICIES, Policy, make_policy
from router.own_policies import full_name, rules_of


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


def policy_of(name: str, options: Mapping[str, float]) -> Policy:
    """Make a policy of the registry, or of a user.

    Raises:
        ValueError: As `policies.make_policy`, or a user's policy cannot be loaded.
    """
    return make_policy(name, options, rules_of(name))


def _all() -> list[Contender]:
    return [Contender(name) for name in POLICIES]


def _contender(entry: str) -> Contender:
    name, options = _name(entry), {}
    for text in entry.strip().removeprefix(name).split(":")[1:]:
        option, _, value = text.partition("=")
        try:
            options[option.strip()] = float(value)
        except ValueError:
            raise ValueError(
                f"{text!r} is not an option and its value, as in affinity:match_weight=2"
            ) from None
    name = full_name(name)
    policy_of(name, options)
    return Contender(name, tuple(options.items()))


def _name(entry: str) -> str:
    """Name of a policy: up to the first option, and one colon is part of a user's policy's name."""
    name, *rest = entry.strip().split(":")
    return f"{name}:{rest[0]}" if rest and "=" not in rest[0] and name not in POLICIES else name
