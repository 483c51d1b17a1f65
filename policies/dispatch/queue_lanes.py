"""Lanes of the waiting queue: the workers that may take waiting requests.

A *lane* is a model and a length class, ``MODEL|BUCKET``: all requests of a lane may go to the same workers.
Lookups come thousands of times a second, and the answer changes only when workers or the waiting models do:
so it is cached, and `Lanes.follow` refreshes it.

Where KV crosses links, a lane is split by the side that will prefill, ``MODEL|BUCKET@LINK``, so that short
prompts do not stand behind long ones that go elsewhere. An idle worker of another side may take a request
(`Lanes.beyond`). A prefill worker is worth a look only if another one has room to decode (`Lanes.open`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import is_not
from typing import NamedTuple

import numpy as np

from policies.dispatch.ports import PartnerRoom
from policies.fleet.pairing import Pairing
from policies.pricing.views import Slots
from policies.state.buckets import ANY_BUCKET, ANY_LENGTH, LengthClass
from radix import parsed_whole

LANES_KEPT = 1024
"""Names of lanes that are remembered: some hundred bytes each, for as many models as a fleet serves."""

NO_SLOTS: Slots = np.zeros(0, dtype=np.intp)


@lru_cache(maxsize=LANES_KEPT)
def lane_of(model: str | None, length: LengthClass = ANY_LENGTH) -> str:
    """Name of a lane, as it is in the log: the limit that its requests exceed is a number below -1."""
    number = ANY_BUCKET - length.exceeds_tokens if length.exceeds_tokens else length.bucket
    return f"{model or ''}|{'' if number == ANY_BUCKET else number}"


def lane_by(lane: str, link: str) -> str:
    """Part of a lane whose KV crosses a link; an empty link crosses none."""
    return f"{lane}@{link.translate(_SAFE)}"


def model_and_length(lane: str) -> tuple[str | None, LengthClass]:
    """Model and length class that a lane is named after; other text than a number is any length."""
    model, _, tail = lane.rpartition("|")
    text = tail.partition("@")[0]
    number = parsed_whole(text.removeprefix("-"))
    if number is None:
        return model or None, ANY_LENGTH
    if text.startswith("-"):
        return model or None, LengthClass(exceeds_tokens=max(number + ANY_BUCKET, 0))
    return model or None, LengthClass(number)


_SAFE = str.maketrans("|", "/")
"""Names of sites are free text."""


class _Served(NamedTuple):
    """Own workers of a lane, the pairing of all of them, and the workers of other sides."""

    slots: Slots
    pairing: Pairing | None
    beyond: tuple[Slots, ...] = ()


class _Groups:
    """Workers by the lanes that they serve; group 0 serves none.

    Attributes:
        lanes: Lanes of each group.
    """

    def __init__(self, members: Sequence[tuple[str, Sequence[Slots]]]) -> None:
        rows = max((slots.max(initial=0).item() + 1 for _, parts in members for slots in parts), default=1)
        self._numbers: Slots = np.zeros(rows, dtype=np.intp)
        self.lanes: list[tuple[str, ...]] = [()]
        for lane, parts in members:
            inside = np.zeros(rows, dtype=np.bool_)
            for slots in parts:
                inside[slots] = True
            # The workers inside leave their group for a new one.
            parted = np.unique(self._numbers[inside])
            numbers = np.zeros(len(self.lanes), dtype=np.intp)
            numbers[parted] = np.arange(len(self.lanes), len(self.lanes) + len(parted))
            self._numbers[inside] = numbers[self._numbers[inside]]
            self.lanes += [(*self.lanes[number], lane) for number in parted.tolist()]

    def number(self, slot: int) -> int:
        """Group of the worker in a slot."""
        return self._numbers.item(slot) if slot < len(self._numbers) else 0

    def numbers(self, slots: Slots) -> Slots:
        """Groups of some workers, each in one."""
        known = slots < len(self._numbers)
        return np.where(known, self._numbers[np.where(known, slots, 0)], 0)

    def slots(self) -> Slots:
        """Workers that serve a lane."""
        return np.flatnonzero(self._numbers)


class Lanes:
    """Lanes in which requests wait, and the workers that serve them.

    ``slots_of`` and ``pairing_of`` return the same object until it changes; no pairing means that no worker
    of a lane needs a partner. ``partners`` None: partners have room, and no KV crosses a link.

    Attributes:
        slots: All workers that serve a lane, or may when idle.
        pairs: True if one of them needs a partner.
    """

    def __init__(
        self,
        slots_of: Callable[[str], Slots],
        pairing_of: Callable[[str], Pairing | None] = lambda _: None,
        partners: PartnerRoom | None = None,
    ) -> None:
        self._slots_of = slots_of
        self._pairing_of = pairing_of
        self._partners = partners
        self._current: dict[str, _Served] = {}
        self._of = self._beyond = _Groups(())
        self.slots: Slots = NO_SLOTS
        self.pairs = False

    def serving(self, lane: str) -> Slots:
        """Workers that may take the requests of a lane now."""
        return self._served(lane).slots

    def of(self, slot: int) -> Sequence[str]:
        """Lanes that the worker in a slot serves, as of the last `follow`."""
        return self._of.lanes[self._of.number(slot)]

    def groups(self, slots: Slots) -> tuple[Slots, Sequence[Sequence[str]]]:
        """Return for each of some workers the number of its group, and the lanes that each group serves."""
        return self._of.numbers(slots), self._of.lanes

    def group(self, slot: int) -> int:
        """Number of the group of the worker in a slot."""
        return self._of.number(slot)

    def beyond(self, slot: int) -> Sequence[str]:
        """Lanes of other sides that the worker in a slot may help out when it is idle."""
        return self._beyond.lanes[self._beyond.number(slot)]

    def open(self, slots: Slots, now_us: int) -> Slots:
        """Return those of some workers that need no partner in one of their lanes, or have one with room.

        An idle decode worker needs no partner.
        """
        if not self.pairs or self._partners is None:
            return slots
        open_ = np.zeros(len(slots), dtype=np.bool_)
        for served in self._current.values():
            mask = np.isin(slots, served.slots, assume_unique=True)
            for others in served.beyond:
                mask |= np.isin(slots, others, assume_unique=True)
            if served.pairing is not None:
                mask &= self._partners.open(served.pairing, slots, now_us)
            open_ |= mask
        return slots if open_.all() else slots[open_]

    def is_open(self, slot: int, now_us: int, tokens: float = 1.0) -> bool:
        """True if `open` would return this one, for a request of this length in tokens."""
        if not self.pairs or self._partners is None:
            return True
        pairings = (self._current[lane].pairing for lane in (*self.of(slot), *self.beyond(slot)))
        return any(
            pairing is None or self._partners.is_open(pairing, slot, now_us, tokens) for pairing in pairings
        )

    def can_decode(self, lane: str, tokens: float, now_us: int) -> bool:
        """True if a decode worker has room for a request of a lane and this length in tokens."""
        pairing = self._pairing_of(lane)
        return (
            pairing is not None
            and self._partners is not None
            and self._partners.any_room(pairing, tokens, now_us)
        )

    def knows(self, lane: str) -> bool:
        """True if a lane was among those of the last `follow`."""
        return lane in self._current

    def follow(self, waiting: Iterable[str]) -> None:
        """Refresh the lanes in which requests wait."""
        lanes = {lane: self._served(lane) for lane in waiting}
        last = self._current
        if len(lanes) == len(last) and all(
            lane in last and _same(last[lane], served) for lane, served in lanes.items()
        ):
            return
        self._current = lanes
        self.pairs = any(served.pairing is not None for served in lanes.values())
        names = sorted(lanes)
        self._of = _Groups([(lane, (lanes[lane].slots,)) for lane in names])
        self._beyond = _Groups([(lane, lanes[lane].beyond) for lane in names])
        self.slots = np.union1d(self._of.slots(), self._beyond.slots())

    def _served(self, lane: str) -> _Served:
        slots, pairing = self._slots_of(lane), self._pairing_of(lane)
        whole, at, link = lane.rpartition("@")
        if not at or "|" in link or pairing is None or self._partners is None:
            return _Served(slots, pairing)
        by_site = self._partners.by_site(pairing, slots)
        if by_site is None:
            return _Served(slots, pairing)
        parts = {lane_by(whole, side.link): side.slots for side in by_site.remote}
        parts[lane_by(whole, "")] = by_site.local
        own = parts.pop(lane, NO_SLOTS)
        return _Served(own, pairing, tuple(parts.values()))


def _same(last: _Served, served: _Served) -> bool:
    """True if nothing changed: the same arrays, not only equal ones."""
    return (
        last.slots is served.slots
        and last.pairing is served.pairing
        and len(last.beyond) == len(served.beyond)
        and not any(map(is_not, last.beyond, served.beyond))
    )
