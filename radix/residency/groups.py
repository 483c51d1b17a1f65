"""The cache groups of one worker's engines, learned from their stores.

vLLM caches layers by *group*, names the kind of a group's layers with each store, and with a removal only the
group's number. Demands of a group for going on from a boundary (vLLM
``v1/core/single_type_kv_cache_manager.py``):

    full_attention, mla_attention, sink_full_attention    every block before it
    sliding_window, sliding_window_mla                    the last ceil((W - 1) / block), or all of them
    mamba                                                 the state at the boundary: its last block
    chunked_local_attention                               those of the boundary's own chunk
    cross_attention, encoder_only_attention               nothing: they cache no prefixes

No event gives the length of a chunk of local attention, the demands of an unknown kind, or a window that its
group does not name: these demand every block. That promises less than the engine can do, never more.

A group's blocks on one medium are a *lane*. A group holds a block while any of its lanes does. Lanes of other
media than the device's are *below* it.
"""

from typing import TYPE_CHECKING

from radix.residency.engine_events import BlocksStored

if TYPE_CHECKING:
    from radix.residency.runs import Run

WINDOW_KINDS = frozenset({"sliding_window", "sliding_window_mla"})
STATE_KINDS = frozenset({"mamba"})
IGNORED_KINDS = frozenset({"cross_attention", "encoder_only_attention"})

DEFAULT_MEDIUM = "GPU"
"""Medium of blocks without one, as before engines had tiers."""

LANES_MAX = 64
"""Most lanes; engines have some ten groups on up to four media. Events of further ones are ignored."""

IGNORED = -1
"""The lane of layers that cache no prefixes."""


class Group:
    """A cache group.

    Attributes:
        kind: As the engine reported; None if it never did.
        window_tokens: Its sliding window; None without one.
        block_tokens: Its block size; 0 until a store with tokens reported it.
        device: Its lane on the device; None without one.
        below: Its lanes below the device.
        placed: True once the place of one of its blocks was known.
    """

    __slots__ = ("below", "block_tokens", "device", "kind", "placed", "window_tokens")

    def __init__(self) -> None:
        self.kind: str | None = None
        self.window_tokens: int | None = None
        self.block_tokens = 0
        self.device: int | None = None
        self.below: list[int] = []
        self.placed = False

    @property
    def partial(self) -> bool:
        """True if a boundary does not need all blocks before it."""
        return self.kind in STATE_KINDS or (self.kind in WINDOW_KINDS and self.window_tokens is not None)

    def need(self, block_tokens: int) -> int:
        """Blocks in a row that must be held before a boundary."""
        window = 2 if self.kind in STATE_KINDS else self.window_tokens or 0
        return max(1, -(-(window - 1) // block_tokens))

    def need_below(self, block_tokens: int) -> int:
        """Return the same for memory below the device: vLLM's connector asks for ceil(W / block)."""
        return 1 if self.kind in STATE_KINDS else max(1, -(-(self.window_tokens or 0) // block_tokens))

    def bits(self, run: "Run") -> int:
        """Blocks of a run that it holds: bit i for block i."""
        return self.device_bits(run) | self.below_bits(run)

    def device_bits(self, run: "Run") -> int:
        """Those that it holds on the device."""
        return 0 if self.device is None else run.lanes.get(self.device, 0)

    def below_bits(self, run: "Run") -> int:
        """Those that it holds below."""
        bits = 0
        for lane in self.below:
            bits |= run.lanes.get(lane, 0)
        return bits


class Groups:
    """All groups of one worker.

    Attributes:
        block_tokens: Tokens of the blocks whose places are known; 0 until one is.
        full: Groups that demand every block.
        partial: The others, each with the blocks in a row that it demands.
        needs_below: Blocks that each of these demands of memory below the device.
        reach_back: The greatest of these demands.
        tiered: True once blocks were stored below the device.
        has_states: True if a group has linear states.
        version: Rises when a boundary may be judged differently.
    """

    def __init__(self) -> None:
        self.block_tokens = 0
        self.full: list[Group] = []
        self.partial: list[tuple[Group, int]] = []
        self.needs_below: list[int] = []
        self.reach_back = 0
        self.tiered = False
        self.has_states = False
        self.version = 0
        self._by_number: dict[int | None, Group] = {}
        self._lanes: dict[tuple[int | None, str], int] = {}
        self._owners: list[Group] = []
        self._removals: dict[tuple[int | None, str | None], tuple[int, ...]] = {}
        self._lane_of: dict[tuple[int | None, str | None, str | None, int | None], int] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def lane(self, event: BlocksStored) -> int:
        """Lane of stored blocks."""
        described = (event.group, event.medium, event.kind, event.window_tokens)
        lane = self._lane_of.get(described)
        if lane is None:
            if len(self._lane_of) >= LANES_MAX:
                self._lane_of.clear()
            lane = self._lane_of[described] = self._learn(event)
        if lane >= 0:
            group = self._owners[lane]
            if not group.block_tokens and event.token_ids:
                group.block_tokens = event.block_tokens
        return lane

    def removed(self, group: int | None, medium: str | None) -> tuple[int, ...]:
        """Lanes of removed blocks."""
        lanes = self._removals.get((group, medium))
        if lanes is None:
            if len(self._removals) >= LANES_MAX:
                self._removals.clear()
            where = medium or DEFAULT_MEDIUM
            lanes = self._removals[group, medium] = tuple(
                lane
                for (number, on), lane in self._lanes.items()
                if on == where and (group is None or number == group)
            )
        return lanes

    def owner(self, lane: int) -> Group:
        """Group of a lane."""
        return self._owners[lane]

    def settle(self, block_tokens: int) -> None:
        """Fix the size of the blocks that have places."""
        self.block_tokens = block_tokens
        self._judge()

    @property
    def readable(self) -> bool:
        """True if every group that holds blocks has places for them."""
        return all(
            group.placed and group.block_tokens in (0, self.block_tokens)
            for group in self._by_number.values()
        )

    def _learn(self, event: BlocksStored) -> int:
        medium = event.medium or DEFAULT_MEDIUM
        has_lane = (event.group, medium) in self._lanes
        if event.kind in IGNORED_KINDS or (len(self._lanes) == LANES_MAX and not has_lane):
            return IGNORED
        group = self._by_number.get(event.group)
        if group is None:
            group = self._by_number[event.group] = Group()
        if event.kind is not None:
            group.kind = event.kind
            group.window_tokens = event.window_tokens or None
        lane = self._lanes.get((event.group, medium))
        if lane is None:
            lane = self._lanes[event.group, medium] = len(self._owners)
            self._owners.append(group)
            if medium == DEFAULT_MEDIUM:
                group.device = lane
            else:
                group.below.append(lane)
            self._removals.clear()
        self._judge()
        return lane

    def _judge(self) -> None:
        groups = self._by_number.values()
        size = self.block_tokens or 1
        self.full = [group for group in groups if not group.partial]
        self.partial = [(group, group.need(size)) for group in groups if group.partial]
        self.needs_below = [group.need_below(size) for group, _ in self.partial]
        self.tiered = any(group.below for group in groups)
        self.has_states = any(group.kind in STATE_KINDS for group in groups)
        needs = [need for _, need in self.partial]
        self.reach_back = max(needs + self.needs_below if self.tiered else needs, default=0)
        self.version += 1
