"""Workers that may begin a request, and the decode workers with which a prefill worker can share it.

    plain     begins, and needs no partner
    prefill   begins, if a decode worker of its hand-over protocol is there
    decode    ends a prefill worker's request; alone it takes whole requests if its protocol lets it
    encode    neither: it works for the others

In a fleet of plain workers nothing here costs anything. Lists are cached until a worker or a circuit changes:
a request costs a look-up in a dictionary.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from operator import is_not
from typing import NamedTuple

import numpy as np

from policies import ALONE, HAND_OVERS, LengthClass, Pairing, Partners, Slots
from router.fleet.circuits import Circuits
from router.fleet.local_worker import LocalWorker

CACHED_MAX = 1000
"""Cached lists of slots, and kinds of requests."""

Kind = tuple[str | None, LengthClass]
"""Kind of requests: their model and their length class."""


WHOLE = frozenset(name for name, hand_over in HAND_OVERS.items() if hand_over.prefills)
"""Protocols whose decode workers can do a whole request alone."""


class _Cached(NamedTuple):
    """Result for a list of slots, valid while the decode arrays are the same."""

    slots: Slots
    decode: tuple[Slots, ...]
    accompanied: Slots
    pairing: Pairing | None


class Pairs:
    """The pairs that a replica's workers can form; `active` if not all are plain."""

    def __init__(self, circuits: Circuits, ready: Callable[[Kind], Sequence[LocalWorker]]) -> None:
        self.active = False
        self._circuits = circuits
        self._ready = ready
        self._prefill: dict[int, str] = {}
        self._decode: dict[Kind, dict[str, Slots]] = {}
        self._cached: dict[int, _Cached] = {}

    def follow(self, workers: Iterable[LocalWorker]) -> None:
        """Apply changed workers, roles or protocols."""
        self._decode.clear()
        self._cached.clear()
        others = [local for local in workers if local.worker.role != "plain"]
        self.active = bool(others)
        self._prefill = {
            slot: local.protocol for local in others if local.worker.role == "prefill" for slot in local.slots
        }

    def beginners(self, kind: Kind) -> Slots:
        """Slots of the places that may begin requests of this kind, rising."""
        begins: dict[str, Container[str]] = {"prefill": self._decoding(kind), "decode": WHOLE}
        return np.array(
            sorted(
                slot
                for local in self._ready(kind)
                if local.worker.role == "plain" or local.protocol in begins.get(local.worker.role, ())
                for slot in local.slots
            ),
            dtype=np.intp,
        )

    def accompanied(self, slots: Slots, kind: Kind, now_us: int) -> Slots:
        """Return the beginners that need no partner, or have one for now: the same array until a change."""
        return self._of(slots, kind, now_us).accompanied

    def pairing(self, slots: Slots, kind: Kind, now_us: int) -> Pairing | None:
        """Return those of the `accompanied` slots that need a partner; None if none does."""
        return self._of(slots, kind, now_us).pairing

    def missing(self, kind: Kind) -> str:
        """Advice that would let healthy workers serve requests of this kind; empty if no partner lacks."""
        roles: dict[str, set[str]] = {}
        for local in self._ready(kind):
            roles.setdefault(local.worker.role, set()).add(local.protocol)
        prefill, decode = roles.get("prefill", set()), roles.get("decode", set())
        if "" in prefill | decode:
            return "Label prefill and decode workers with 'handover': their engine is unknown."
        if prefill and not prefill & decode:
            return f"Prefill workers ({_listed(prefill)}) have no decode worker for it that is well: add one."
        if decode and not prefill:
            return f"Decode workers ({_listed(decode)}) have no prefill worker for it that is well: add one."
        return ""

    def _decoding(self, kind: Kind) -> dict[str, Slots]:
        decode = self._decode.get(kind)
        if decode is None:
            slots: dict[str, list[int]] = {}
            for local in self._ready(kind):
                if local.worker.role == "decode" and local.protocol:
                    slots.setdefault(local.protocol, []).extend(local.slots)
            if len(self._decode) >= CACHED_MAX:
                self._decode.clear()
            decode = self._decode[kind] = {
                name: np.array(sorted(slots[name]), dtype=np.intp) for name in sorted(slots)
            }
        return decode

    def _of(self, slots: Slots, kind: Kind, now_us: int) -> _Cached:
        allowed = self._circuits.allowed
        decoding = self._decoding(kind)
        decode = [allowed(each, now_us) for each in decoding.values()]
        cached = self._cached.get(id(slots))  # see `policies.fleet.columns`
        if (
            cached is None
            or cached.slots is not slots
            or len(cached.decode) != len(decode)
            or any(map(is_not, cached.decode, decode))
        ):
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            cached = self._cached[id(slots)] = self._find(slots, decoding, tuple(decode))
        return cached

    def _find(self, slots: Slots, protocols: Iterable[str], decode: tuple[Slots, ...]) -> _Cached:
        partners = tuple(
            Partners(protocol, each) for protocol, each in zip(protocols, decode, strict=True) if len(each)
        )
        numbers = {each.protocol: number for number, each in enumerate(partners)}
        prefill = self._prefill
        usable = [slot for slot in slots.tolist() if slot not in prefill or prefill[slot] in numbers]
        accompanied = slots if len(usable) == len(slots) else np.array(usable, dtype=np.intp)
        groups = [numbers[prefill[slot]] if slot in prefill else ALONE for slot in usable]
        pairing = None
        if any(group != ALONE for group in groups):
            pairing = Pairing(accompanied, np.array(groups, dtype=np.intp), partners)
        return _Cached(slots, decode, accompanied, pairing)


def _listed(protocols: Iterable[str]) -> str:
    return ", ".join(sorted(protocols))
