"""Who may begin a request, and with which decode workers a prefill worker can share it.

    plain     begins, and needs nobody
    prefill   begins, if a decode worker of its hand-over protocol is there
    decode    ends what a prefill worker began; alone it takes whole requests if its protocol lets it
    encode    neither: it works for the others

In a fleet without prefill, decode and encode workers nothing here costs anything. Lists are kept until a
worker or a circuit changes: a request costs a look into a dictionary.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from operator import is_not
from typing import NamedTuple

import numpy as np

from policies import ALONE, HAND_OVERS, LengthClass, Pairing, Partners, Slots
from router.fleet.circuits import Circuits
from router.fleet.local_worker import LocalWorker

KEPT_MAX = 1000
"""Lists of slots, and kinds of requests, whose partners are kept."""

Kind = tuple[str | None, LengthClass]
"""Of requests: their model and their length class."""


WHOLE = frozenset(name for name, hand_over in HAND_OVERS.items() if hand_over.prefills)
"""Protocols whose decode workers can do a whole request alone."""


class _Kept(NamedTuple):
    """What was found for a list of slots, as long as those who decode are the same arrays."""

    slots: Slots
    decode: tuple[Slots, ...]
    accompanied: Slots
    pairing: Pairing | None


class Pairs:
    """The pairs that the workers of a replica can form.

    Args:
        circuits: Say whom requests may go to now.
        ready: The workers that are well and may take part in requests of a kind.

    Attributes:
        active: Whether somebody is not a plain worker.
    """

    def __init__(self, circuits: Circuits, ready: Callable[[Kind], Sequence[LocalWorker]]) -> None:
        self.active = False
        self._circuits = circuits
        self._ready = ready
        self._prefill: dict[int, str] = {}
        self._decode: dict[Kind, dict[str, Slots]] = {}
        self._kept: dict[int, _Kept] = {}

    def follow(self, workers: Iterable[LocalWorker]) -> None:
        """Workers, their roles or their protocols may have changed."""
        self._decode.clear()
        self._kept.clear()
        others = [local for local in workers if local.worker.role != "plain"]
        self.active = bool(others)
        self._prefill = {
            local.worker.slot: local.protocol for local in others if local.worker.role == "prefill"
        }

    def beginners(self, kind: Kind) -> Slots:
        """Slots of those that may begin requests of this kind, in the order in which they are ready."""
        begins: dict[str, Container[str]] = {"prefill": self._decoding(kind), "decode": WHOLE}
        return np.array(
            [
                worker.slot
                for local in self._ready(kind)
                if (worker := local.worker).role == "plain" or local.protocol in begins.get(worker.role, ())
            ],
            dtype=np.intp,
        )

    def accompanied(self, slots: Slots, kind: Kind, now_us: int) -> Slots:
        """Of some who may begin, those who need nobody or whose partners may be asked now.

        Args:
            slots: Some of `beginners`.
            kind: As there.
            now_us: Log time.

        Returns:
            The same array again until a worker or a circuit changes.
        """
        return self._of(slots, kind, now_us).accompanied

    def pairing(self, slots: Slots, kind: Kind, now_us: int) -> Pairing | None:
        """Who of some workers needs a partner, and who those are; None if nobody does.

        Args:
            slots: Some of `accompanied`.
            kind: As there.
            now_us: Log time.
        """
        return self._of(slots, kind, now_us).pairing

    def missing(self, kind: Kind) -> str:
        """What would let workers that are well serve requests of this kind; empty if it is not a partner."""
        roles: dict[str, set[str]] = {}
        for local in self._ready(kind):
            roles.setdefault(local.worker.role, set()).add(local.protocol)
        prefill, decode = roles.get("prefill", set()), roles.get("decode", set())
        if "" in prefill | decode:
            return "Label prefill and decode workers with 'handover': their engine does not say what it is."
        if prefill and not prefill & decode:
            return f"Prefill workers ({_listed(prefill)}) have no decode worker for it that is well: add one."
        if decode and not prefill:
            return f"Decode workers ({_listed(decode)}) have no prefill worker for it that is well: add one."
        return ""

    def _decoding(self, kind: Kind) -> dict[str, Slots]:
        """By protocol, the decode workers."""
        known = self._decode.get(kind)
        if known is None:
            slots: dict[str, list[int]] = {}
            for local in self._ready(kind):
                if local.worker.role == "decode" and local.protocol:
                    slots.setdefault(local.protocol, []).append(local.worker.slot)
            if len(self._decode) >= KEPT_MAX:
                self._decode.clear()
            known = self._decode[kind] = {
                name: np.array(slots[name], dtype=np.intp) for name in sorted(slots)
            }
        return known

    def _of(self, slots: Slots, kind: Kind, now_us: int) -> _Kept:
        allowed = self._circuits.allowed
        decoding = self._decoding(kind)
        decode = [allowed(each, now_us) for each in decoding.values()]
        kept = self._kept.get(id(slots))  # see `policies.fleet.columns`
        if (
            kept is None
            or kept.slots is not slots
            or len(kept.decode) != len(decode)
            or any(map(is_not, kept.decode, decode))
        ):
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            kept = self._kept[id(slots)] = self._find(slots, decoding, tuple(decode))
        return kept

    def _find(self, slots: Slots, protocols: Iterable[str], decode: tuple[Slots, ...]) -> _Kept:
        partners = tuple(
            Partners(protocol, each) for protocol, each in zip(protocols, decode, strict=True) if len(each)
        )
        numbers = {each.protocol: number for number, each in enumerate(partners)}
        prefill = self._prefill
        kept = [slot for slot in slots.tolist() if slot not in prefill or prefill[slot] in numbers]
        accompanied = slots if len(kept) == len(slots) else np.array(kept, dtype=np.intp)
        groups = [numbers[prefill[slot]] if slot in prefill else ALONE for slot in kept]
        pairing = None
        if any(group != ALONE for group in groups):
            pairing = Pairing(accompanied, np.array(groups, dtype=np.intp), partners)
        return _Kept(slots, decode, accompanied, pairing)


def _listed(protocols: Iterable[str]) -> str:
    return ", ".join(sorted(protocols))
