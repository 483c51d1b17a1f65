"""Cache of the most recently used values, with a bound in bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 200
"""Bytes of an entry beside its value: its key, its place in the table and the objects themselves."""

SHARE_MAX = 4
"""An entry of more than this part of the whole is not kept: it would drive out all others."""


class Remembered(Generic[K, V]):
    """Values by key, at most ``bytes_max`` in all; several threads may use it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        self.size_bytes = 0

    def __len__(self) -> int:
        """Count entries."""
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """Return the value of a key, and mark it as the last used."""
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                return None
            self._kept.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, value_bytes: int) -> None:
        """Store a value with its weight in bytes."""
        size_bytes = value_bytes + ENTRY_BYTES
        if size_bytes > self._bytes_max // SHARE_MAX:
            return
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = value, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self._bytes_max:
                self.size_bytes -= self._kept.popitem(last=False)[1][1]
