"""Slots of the workers with a label, found again only when a worker has changed."""

import numpy as np

from policies import Slots
from router.fleet import Core

LABELS_MAX = 1000


class LabelIndex:
    """The slots of one fleet's workers by label."""

    def __init__(self, core: Core) -> None:
        self._fleet, self._registry = core.fleet, core.registry
        self._revision = -1
        self._slots: dict[str, Slots] = {}

    def slots_of(self, label: str) -> Slots:
        """Return the slots of the workers with a label, given as ``KEY=VALUE``."""
        if self._fleet.revision != self._revision or len(self._slots) >= LABELS_MAX:
            self._slots.clear()
        found = self._slots.get(label)
        if found is None:
            key, _, value = label.partition("=")
            places = self._registry.places()
            self._revision = self._fleet.revision
            found = np.array(
                [place.slot for local, place in places if local.worker.labels.get(key) == value],
                dtype=np.intp,
            )
            self._slots[label] = found
        return found
