"""Columns of the workers that do not change with every request, one row per slot.

    hash, prices             when the worker, its slowdown, or the fit of its class changes
    congestion, held tokens, evictions   every `REFRESH_US`, since they are averages over seconds
    content of the device    of one worker with host memory every `REFRESH_US`: a pass over its runs

The rows of one list of candidates are gathered once (`Columns.gathered`) and kept until something in them
changes. So a request costs a dictionary look-up, and not a gathering per column.

This is no part of the fold: it is derived, and no snapshot contains it.
"""

from math import fsum

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from policies.estimates.costs import ServiceModel, congestion_per_s
from policies.fleet.cache_pools import PoolMembers
from policies.pricing.plain import plain_rows
from policies.pricing.views import FEW_MAX, Beside, Evictions, Slots, SlowColumns, Spills
from policies.state.bucket_members import BucketMembers
from policies.state.buckets import ANY_BUCKET, BUSY_RATIO_MIN
from policies.state.loads import Loads
from radix import PrefixTree

GATHERED_MAX = 100
"""Lists of slots (one per model and bucket) whose rows are kept at a time."""

REFRESH_US = 100_000
"""Greatest age of the averages."""

OWN_RATIO = 0.5
"""Share of a worker's own kappa, if all requests return to their cache (`Columns._congestion_per_s`)."""

RETURN_S = 60.0
"""Age of a block at which half of such are wanted again [guess].

Agents' sessions pause for up to a minute, and a session that has ended never comes back.
"""

TAILS_MAX = 128
"""Ends of caches inspected in one refresh, at 1.5 us each."""

_NAMES = (
    "slowdown",
    "a_s",
    "b_s",
    "c0_tokens",
    "congestion_per_s",
    "utilisation",
    "held_tokens",
    "evict_ratio",
    "free_tokens",
    "device_from_us",
)


class Columns:
    """The columns of all workers of a fleet.

    Attributes:
        congestion_max_per_s: Upper bound of kappa; counts when the averages are computed next.
        classes: Numbers of the worker classes.
        ranks: By slot of a data-parallel rank the slots of the others of its engine (`policies.fleet.ranks`).
    """

    def __init__(
        self,
        loads: Loads,
        tree: PrefixTree,
        buckets: BucketMembers,
        pools: PoolMembers,
        *,
        congestion_max_per_s: float,
        block_tokens: int,
    ) -> None:
        self._loads = loads
        self._tree = tree
        self._buckets = buckets
        self._pools = pools
        self.congestion_max_per_s = congestion_max_per_s
        self._block_tokens = float(block_tokens)
        self._count = 0
        self._columns = {name: np.zeros(8) for name in _NAMES}
        self._worker_hash = np.zeros(8, dtype=np.uint64)
        self.classes: dict[str, int] = {}
        self._device_blocks: dict[int, int] = {}
        """By slot, of workers whose host memory holds more; in the order in which they are looked at."""
        self._class = np.full(8, -1)
        self.ranks: dict[int, tuple[int, ...]] = {}
        self._gathered: dict[tuple[int, int], SlowColumns] = {}
        self._refreshed_us = -REFRESH_US
        self._looked = 0

    def put(self, slot: int, worker_id: str, worker_class: str, model: ServiceModel, slowdown: float) -> None:
        """Note the worker of a slot, which may be the next one; ``model`` is that of its class."""
        self._count = max(self._count, slot + 1)
        if self._count > len(self._worker_hash):
            self._grow(2 * len(self._worker_hash))
        self._worker_hash[slot] = xxhash.xxh3_64_intdigest(worker_id.encode())
        self._class[slot] = self.classes.setdefault(worker_class, len(self.classes))
        self._columns["slowdown"][slot] = slowdown
        self._price(slot, model)

    def slowdown(self, slot: int) -> float:
        """Time that the worker in a slot takes over that of its class, as it is priced."""
        return self._columns["slowdown"].item(slot)

    def put_device(self, slot: int, blocks: int) -> None:
        """Note how many blocks the device of a worker holds that has host memory; 0: it has none."""
        self._device_blocks.pop(slot, None)
        if blocks:
            self._device_blocks[slot] = blocks
        else:
            self._columns["device_from_us"][slot] = 0.0

    def price(self, worker_class: str, model: ServiceModel) -> None:
        """Set the prices of all workers of a class."""
        if worker_class in self.classes:
            self._price(self._class == self.classes[worker_class], model)

    def _price(self, rows: int | NDArray[np.bool_], model: ServiceModel) -> None:
        self.forget()
        slowdown = self._columns["slowdown"][rows]
        self._columns["a_s"][rows] = model.a_s * slowdown
        self._columns["b_s"][rows] = model.b_s * slowdown
        self._columns["c0_tokens"][rows] = model.c0_tokens

    def forget(self) -> None:
        """Gather all rows again, since a bucket, a pool or a price changed."""
        self._gathered.clear()

    def refresh_soon(self) -> None:
        """Compute the averages again for the next request."""
        self._refreshed_us = -REFRESH_US

    def hashes(self, slots: Slots) -> NDArray[np.uint64]:
        """64-bit hashes of the workers in these slots, for rendezvous hashing."""
        return self._worker_hash[slots]

    def gathered(self, slots: Slots, bucket: int, now_us: int) -> SlowColumns:
        """Return the rows of some workers for a request.

        The same array of slots, not empty, finds its rows again.
        """
        if now_us - self._refreshed_us >= REFRESH_US:
            self._refresh(now_us)
        # By identity, here and in all other maps with slots as a key: 0.09 us for any number, and by their
        # bytes 0.14 us for 4, 0.35 us for 100 and 2.4 us for 1,000 workers. The cached rows hold the array,
        # so no other one can have its identity.
        return self._gathered.get((id(slots), bucket)) or self._gather(slots, bucket)

    def _grow(self, rows: int) -> None:
        for name, column in self._columns.items():
            self._columns[name] = np.concatenate([column, np.zeros(rows - len(column))])
        hashes = self._worker_hash
        self._worker_hash = np.concatenate([hashes, np.zeros(rows - len(hashes), dtype=np.uint64)])
        self._class = np.concatenate([self._class, np.full(rows - len(self._class), -1)])

    def _refresh(self, now_us: int) -> None:
        self.forget()
        self._refreshed_us = now_us
        count = self._count
        arrivals_per_s, utilisation = self._loads.rates(now_us)
        self._columns["congestion_per_s"][:count] = congestion_per_s(
            arrivals_per_s[:count], utilisation[:count], self.congestion_max_per_s
        )
        self._columns["utilisation"][:count] = utilisation[:count]
        held = [self._tree.held_blocks(slot) for slot in range(count)]
        self._columns["held_tokens"][:count] = np.asarray(held) * self._block_tokens
        first = self._looked if self._looked < count else 0
        self._looked = min(first + TAILS_MAX, count)
        for slot in range(first, self._looked):
            self._look_at_tail(slot, now_us)
        self._look_at_device()

    def _look_at_tail(self, slot: int, now_us: int) -> None:
        """Find the free space of a worker's cache, and the chance that its next block to go is wanted again.

        The chance is ``r/(r + age)`` with r = `RETURN_S`: that of a return whose hazard falls as 1/age
        (heavy-tailed pauses, as between the turns of a session).
        """
        room = self._tree.room(slot)
        ratio = free_tokens = 0.0
        if room is not None:
            free_tokens = room.free_blocks * self._block_tokens
            age_s = max(now_us - room.oldest_us, 0) / 1e6
            ratio = RETURN_S / (RETURN_S + age_s)
        self._columns["evict_ratio"][slot] = ratio
        self._columns["free_tokens"][slot] = free_tokens

    def _look_at_device(self) -> None:
        """Find, for one worker with host memory, the log time from which its last uses are on its device."""
        slot = next(iter(self._device_blocks), -1)
        if slot >= 0:
            blocks = self._device_blocks[slot] = self._device_blocks.pop(slot)
            self._columns["device_from_us"][slot] = self._tree.newest_from_us(slot, blocks)

    def _gather(self, slots: Slots, bucket: int) -> SlowColumns:
        if len(self._gathered) >= GATHERED_MAX:
            self.forget()
        columns, count, returning = self._columns, len(slots), self._loads.return_ratio(slots)
        spills = self._spills(slots, bucket)
        first = slots.item(0) if count else 0
        together = bool((slots == np.arange(first, first + count)).all())
        slow = SlowColumns(
            slots,
            slice(first, first + count) if together else slots,
            self._worker_hash[slots],
            columns["held_tokens"][slots],
            columns["a_s"][slots],
            columns["b_s"][slots],
            columns["c0_tokens"][slots],
            self._congestion_per_s(slots, spills, returning),
            self._pools.columns(slots.tolist()),
            spills,
            self._evictions(slots),
            self._delayed_ratio(slots, returning),
            self._beside(slots) if self.ranks else None,
            columns["device_from_us"][slots] if columns["device_from_us"].any() else None,
        )
        few = [slow.prices_at(row) for row in range(count)] if count <= FEW_MAX else []
        plain = plain_rows(few, slow.worker_hash.tolist())
        slow = self._gathered[id(slots), bucket] = msgspec.structs.replace(slow, few=few, plain=plain)
        return slow

    def _beside(self, slots: Slots) -> Beside | None:
        """The other ranks of these workers' engines; None if none of them is a rank."""
        ranks = [self.ranks.get(slot, ()) for slot in slots.tolist()]
        width = max(map(len, ranks), default=0)
        if not width:
            return None
        padded = [(*others, *[0] * (width - len(others))) for others in ranks]
        exists = [[1.0] * len(others) + [0.0] * (width - len(others)) for others in ranks]
        return Beside(np.array(padded, dtype=np.intp), np.array(exists))

    def _congestion_per_s(self, slots: Slots, spills: Spills | None, returning: float) -> NDArray[np.float64]:
        """Kappa of each: up to half its own, the rest the mean of its length bucket (decisions 0013, 0048).

        A request that returns to its cache goes to the worker that has it, all others go where there is room.
        So a worker's own arrivals predict later ones as far as requests return, and only in part, since 16 s
        of one worker are few requests. The mean is that of workers with like requests.
        """
        measured = self._columns["congestion_per_s"][slots]
        if spills is None:
            return _shared_per_s(measured, returning)
        kappa = np.zeros(len(slots))
        for step in np.unique(spills.steps).tolist():
            alike = spills.steps == step
            kappa[alike] = _shared_per_s(measured[alike], self._loads.return_ratio(slots[alike]))
        return kappa

    def _delayed_ratio(self, slots: Slots, returning: float) -> float:
        """Chance that a later request is delayed by work on one of these while none waits.

        A returning request waits for its worker. One without a cached prefix takes another worker, and is
        delayed only if the n - 1 others are busy, too: by chance ρ^(n-1).
        """
        if not len(slots):
            return 1.0
        busy = min(float(self._columns["utilisation"][slots].mean()), 1.0) ** (len(slots) - 1)
        return returning + (1.0 - returning) * busy

    def _evictions(self, slots: Slots) -> Evictions | None:
        """Loss of these workers by evictions; None if no cache is known."""
        columns = self._columns
        ratio = columns["evict_ratio"][slots]
        if not ratio.any():
            return None
        return Evictions(ratio * columns["b_s"][slots], columns["free_tokens"][slots])

    def _spills(self, slots: Slots, bucket: int) -> Spills | None:
        """Distance of these workers from the bucket of a request; None if all are at home."""
        lengths = self._buckets.lengths
        if bucket == ANY_BUCKET or lengths is None:
            return None
        members = self._buckets.column(slots)
        steps = np.where(members == ANY_BUCKET, 0, members - bucket)
        if not steps.any():
            return None
        columns = self._columns
        busy_ratio = np.clip(columns["utilisation"][slots], BUSY_RATIO_MIN, 1.0)
        token_s = busy_ratio * columns["b_s"][slots] / columns["c0_tokens"][slots]
        middle_tokens = np.array(lengths.middle_tokens)[members]
        return Spills(steps, np.where(steps == 0, 0.0, token_s), middle_tokens)


def _shared_per_s(measured: NDArray[np.float64], returning: float) -> NDArray[np.float64]:
    """Kappa of workers with like requests, of which each has measured its own."""
    own = OWN_RATIO * returning
    # Summed exactly, since replicas know the same workers in another order.
    mean_per_s = fsum(measured.tolist()) / max(len(measured), 1)
    return own * measured + (1.0 - own) * mean_per_s
