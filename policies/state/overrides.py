"""Settings that were changed while the fleet runs, for all replicas.

A change (`policies.state.ops.SettingsChanged`) gives some settings new values, or back those of each
replica's start. The shell knows their meaning; here a value is a text.

    change A   policy=min_ttft              ┐
    change B   policy=affinity, size=100    ├─ newest on each key ─> values: policy=affinity, size=back
    change C   size=back                    ┘

The newest ``(at_us, replica, change_id)`` of each key counts, so replicas that saw the same changes in any
order agree. The newest `HISTORY_MAX` changes are kept whole, and of the older ones the last on
each key: so the values *before* any kept change are known, and another change can bring them back. Both
follow from the set of all changes, and travel in snapshots as operations.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import xxhash

from policies.state.ops import SettingsChanged

HISTORY_MAX = 200
"""Changes that are kept whole: people make some a day, of less than 500 bytes each."""

Version = tuple[int, str, str]
"""Order of changes: log time, replica, id."""


def version_of(change: SettingsChanged) -> Version:
    """Position of a change in the order."""
    return change.at_us, change.replica, change.change_id


class Overrides:
    """Present settings and their history.

    Attributes:
        revision: Counts changes of this state, so that a caller can follow.
    """

    __slots__ = ("_history", "_newest", "_older", "revision")

    def __init__(self) -> None:
        self.revision = 0
        self._history: list[SettingsChanged] = []
        self._newest: dict[str, SettingsChanged] = {}
        self._older: dict[str, SettingsChanged] = {}
        """By key, the newest change on it that the history no longer has."""

    # The fold.

    def apply(self, change: SettingsChanged) -> None:
        """Apply a change. Repeating it, or applying it late, changes nothing more."""
        version, history = version_of(change), self._history
        place = len(history)
        while place and version_of(history[place - 1]) > version:
            place -= 1
        if place and version_of(history[place - 1]) == version:
            return
        history.insert(place, change)
        _note(self._newest, change)
        if len(history) > HISTORY_MAX:
            _note(self._older, history.pop(0))
        self.revision += 1

    def dump(self) -> list[SettingsChanged]:
        """The changes that make this state."""
        older = {version_of(change): change for change in self._older.values()}
        return [*(older[version] for version in sorted(older)), *self._history]

    # Questions.

    @property
    def history(self) -> Sequence[SettingsChanged]:
        """The newest changes, the oldest of them first."""
        return tuple(self._history)

    @property
    def newest(self) -> Mapping[str, SettingsChanged]:
        """The change that counts for each key that was ever changed."""
        return MappingProxyType(self._newest)

    def values(self) -> dict[str, str]:
        """Present values by key, without those of the start."""
        return {key: value for key, value in _values(self._newest) if value is not None}

    def before(self, change_id: str) -> dict[str, str] | None:
        """Values before a change (the oldest with this id), as `values`; None if the history lacks it."""
        newest = dict(self._older)
        for change in self._history:
            if change.change_id == change_id:
                return {key: value for key, value in _values(newest) if value is not None}
            _note(newest, change)
        return None

    def digest(self) -> str:
        """A text that is equal at replicas with the same changes, and another one otherwise."""
        text = repr([(key, version_of(self._newest[key])) for key in sorted(self._newest)])
        return xxhash.xxh3_64_hexdigest(text.encode())

    def next_us(self, now_us: int) -> int:
        """Log time for a change that is to come after all known ones, also if a clock is ahead."""
        return max([now_us, *(change.at_us + 1 for change in self._history[-1:])])


def _note(newest: dict[str, SettingsChanged], change: SettingsChanged) -> None:
    for key in change.values:
        current = newest.get(key)
        if current is None or version_of(change) > version_of(current):
            newest[key] = change


def _values(newest: Mapping[str, SettingsChanged]) -> Iterator[tuple[str, str | None]]:
    for key in sorted(newest):
        yield key, newest[key].values[key]
