"""Names that clients may ask for, and the models that serve them.

    exact alias ──> pattern, the longest first, unless a worker lists the name ──> the name itself

An alias is followed once: its model is none.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from router.model_rules import ANY


class Resolved(NamedTuple):
    """A model, and the alias that led to it; an empty alias if none did."""

    model: str
    alias: str = ""


class Aliases:
    """The aliases of one gateway; ``lists`` says whether a worker lists a name."""

    def __init__(self, aliases: Mapping[str, str], lists: Callable[[str], bool]) -> None:
        self._exact = {alias: model for alias, model in aliases.items() if not alias.endswith(ANY)}
        patterns = [(alias[:-1], model) for alias, model in aliases.items() if alias.endswith(ANY)]
        self._patterns = sorted(patterns, key=lambda each: -len(each[0]))
        self._lists = lists

    def resolve(self, name: str) -> Resolved:
        """Return the model that serves requests for a name, which is not empty."""
        model = self._exact.get(name)
        if model is not None:
            return Resolved(model, name)
        for start, model in self._patterns:
            if name.startswith(start):
                return Resolved(name) if self._lists(name) else Resolved(model, start + ANY)
        return Resolved(name)

    def listed(self) -> dict[str, str]:
        """Return the exact aliases and their models."""
        return self._exact
