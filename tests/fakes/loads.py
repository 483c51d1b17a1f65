"""Folds without loads, and loads that a test sets."""

from collections.abc import Callable

from policies import LoadVector, Op


class AnyKind(dict[type, Callable[[Op], None]]):
    """Handlers of a fake fold, which has one for all types of operations."""

    def __init__(self, apply: Callable[[Op], None]) -> None:
        super().__init__()
        self._apply = apply

    def __missing__(self, kind: type) -> Callable[[Op], None]:
        return self._apply


class FakeLoads:
    """Loads that never change; every operation is published, unless a test says otherwise."""

    def __init__(self) -> None:
        self.due = self.urgent = False
        self.untold: set[type] = set()
        self.inflight: tuple[str, ...] = ("w:1",)
        self.made: list[LoadVector] = []

    def tells(self, op: Op) -> bool:
        return type(op) not in self.untold

    def vector(self, now_us: int, *, full: bool) -> LoadVector:
        self.due = False
        self.made.append(LoadVector("me", now_us, self.inflight, bytes(36 * len(self.inflight)), full))
        return self.made[-1]
