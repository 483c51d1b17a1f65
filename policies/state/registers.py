"""Bounded registers: of each subject the newest operation counts, of all subjects the newest are kept.

    put(op) ── newer than its subject's ──> kept ── too many ──> the oldest goes, for good

The content follows from the set of all operations, in any order and number: the newest of each
subject, and of these the newest ``kept``. So registers are part of the fold (`policies.fleet.fleet`), and no
stream of new names can fill the memory of a replica. A dropped subject comes back with a newer operation
only.

A struct in `policies.state.ops` declares a register: its subject, and whether it ends with its worker.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from policies.state.digests import Digest
from policies.state.ops import REGISTERS, Register, tag_of
from radix import WORKERS_MAX

KEPT_MAX = 1000
"""Most models, worker classes and the like of a fleet; beyond it the newest are kept."""

R = TypeVar("R", bound=Register)


class Registers(Generic[R]):
    """The registers of one kind.

    Args:
        kind: The declaration.
        kept: Most subjects; None: `WORKERS_MAX` workers, `KEPT_MAX` of anything else.

    Attributes:
        known: The newest operations, by subject; only `put` and `discard` change it.
        revision: Counts changes.
        digest: Digest of the newest words; empty for a kind that replicas do not compare.
    """

    __slots__ = ("_floor", "_kept", "digest", "kind", "known", "revision")

    def __init__(self, kind: type[R], kept: int | None = None) -> None:
        self.kind = kind
        self.revision = 0
        self.digest = Digest()
        self._kept = kept or (WORKERS_MAX if kind.by == "worker" else KEPT_MAX)
        self.known: dict[str, R] = {}
        self._floor = (-1, "", "")
        """Version of the newest dropped operation: all older ones of unknown subjects were dropped, too."""

    def put(self, op: R) -> bool:
        """Apply an operation; False if a newer one is known, or if it is older than all that are kept."""
        key = op.key
        known = self.known.get(key)
        if known is not None:
            if (op.at_us, op.replica) <= (known.at_us, known.replica):
                return False
        elif (op.at_us, op.replica, key) <= self._floor:
            return False
        self.known[key] = op
        self._follow(known, op)
        if len(self.known) > self._kept:
            oldest = min((word.at_us, word.replica, name) for name, word in self.known.items())
            self._follow(self.known.pop(oldest[2]), None)
            self._floor = max(self._floor, oldest)
            if oldest[2] == key:
                return False
        self.revision += 1
        return True

    def get(self, key: str) -> R | None:
        """The newest operation on a subject; None if there is none."""
        return self.known.get(key)

    def discard(self, key: str) -> None:
        """Forget a subject."""
        known = self.known.pop(key, None)
        if known is not None:
            self._follow(known, None)
            self.revision += 1

    def _follow(self, old: R | None, new: R | None) -> None:
        """Keep the digest."""
        if self.kind.compared:
            self.digest.replace(
                None if old is None else (old.key, old.at_us, old.replica),
                None if new is None else (new.key, new.at_us, new.replica),
            )

    def __len__(self) -> int:
        return len(self.known)

    def __iter__(self) -> Iterator[R]:
        return iter([self.known[key] for key in sorted(self.known)])


class WorkerRegisters(Registers[R]):
    """Registers that end with their worker, with state by slot in subclasses."""

    __slots__ = ()

    def take(self, op: R, slot: int) -> bool:
        """Apply an operation on the worker in a slot; False if a newer one is known."""
        if not self.put(op):
            return False
        self._taken(op, slot)
        return True

    def drop(self, worker: str, slot: int, until_us: int) -> None:
        """Drop operations of a removed worker up to ``until_us``."""
        known = self.known.get(worker)
        if known is not None and known.at_us <= until_us:
            self.discard(worker)
            self._dropped(slot)

    def _taken(self, op: R, slot: int) -> None:
        """Follow a newer operation on the worker in a slot."""

    def _dropped(self, slot: int) -> None:
        """Follow the end of the register of the worker in a slot."""


class AllRegisters:
    """The registers of all declared kinds (`REGISTERS`).

    Attributes:
        apart: Registers that some part of the fleet keeps, as given.
        plain: All others, in the order of their declarations.
        digests: Digests of the kinds that replicas compare, by tag.
    """

    def __init__(self, *apart: Registers[Any]) -> None:
        self.apart = apart
        named = {registers.kind for registers in apart}
        self.plain: tuple[Registers[Any], ...] = tuple(
            WorkerRegisters(kind) if kind.ends_with_worker else Registers(kind)
            for kind in REGISTERS
            if kind not in named
        )
        self._by_kind: dict[type[Register], Registers[Any]] = {each.kind: each for each in self}
        self._of_workers: dict[type[Register], WorkerRegisters[Any]] = {
            each.kind: each for each in self if isinstance(each, WorkerRegisters)
        }
        self.digests = {tag_of(each.kind): each.digest for each in self if each.kind.compared}

    def __iter__(self) -> Iterator[Registers[Any]]:
        return iter((*self.apart, *self.plain))

    def of(self, kind: type[R]) -> Registers[R]:
        """The registers of one kind."""
        return self._by_kind[kind]

    def newest(self, kind: type[R], key: str = "") -> R | None:
        """The newest operation of one kind on a subject; None if there is none."""
        word: R | None = self._by_kind[kind].known.get(key)
        return word

    def take(self, op: Register, slot: int) -> bool:
        """Apply an operation that ends with its worker, in this slot; False if a newer one is known."""
        return self._of_workers[type(op)].take(op, slot)

    def drop(self, worker: str, slot: int, until_us: int) -> None:
        """Drop operations of a removed worker up to ``until_us`` that end with it."""
        for registers in self._of_workers.values():
            registers.drop(worker, slot, until_us)
