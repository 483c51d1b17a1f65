"""The kinds of cases, and how a seed makes a case of a number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from loadtest.fuzz.actions import Action
from loadtest.fuzz.answers import answers
from loadtest.fuzz.bodies import bodies, floods
from loadtest.fuzz.entries import entries
from loadtest.fuzz.heads import heads
from loadtest.fuzz.orders import orders
from loadtest.fuzz.pods import pods

GENERATORS: dict[str, tuple[Callable[[Random], Action], int]] = {
    "bodies": (bodies, 40),
    "heads": (heads, 15),
    "floods": (floods, 6),
    "orders": (orders, 20),
    "entries": (entries, 12),
    "answers": (answers, 7),
    "pods": (pods, 5),
}
"""By name what makes its cases, and how many of a hundred are of it."""

SHOWN_BYTES = 400


@dataclass(frozen=True, slots=True)
class Case:
    """One case: its number in the run of a seed, a name in `GENERATORS`, and its action."""

    seed: int
    number: int
    kind: str
    action: Action

    def __str__(self) -> str:
        return f"{self.kind} case {self.number} of seed {self.seed}"

    @property
    def replay(self) -> str:
        """The command that plays this case alone."""
        return f"python -m loadtest.fuzz --seed {self.seed} --only {self.number}"

    def shown(self, bytes_max: int = SHOWN_BYTES) -> str:
        """Its action, with long bytes cut."""
        text = repr(self.action)
        left_out = len(text) - bytes_max
        return text if left_out <= 0 else f"{text[:bytes_max]} ... ({left_out} more; --show prints all)"


def case(seed: int, number: int, kinds: Sequence[str] = tuple(GENERATORS)) -> Case:
    """Make a case; it depends on nothing but the arguments."""
    random = Random(f"{seed}/{number}")
    kind = random.choices(kinds, [GENERATORS[name][1] for name in kinds])[0]
    return Case(seed, number, kind, GENERATORS[kind][0](random))
