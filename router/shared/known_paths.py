"""Prompts that the log told lately, so that a later one can be told by its new part.

A block hash stands for its block and everything before it (`radix.blocks`), so one hash names a whole path.
`KnownPaths` maps *anchors* to paths. An anchor is the end of a prompt that was told, or a junction: the depth
at which a prompt left a part that others share, such as a system prompt.

    told: S a        path  [S a         ]     anchors  a
    told: S a b      path  [S a b       ]     anchors  a b      the conversation goes on: its path grows
    told: S c, |S|   path  [S] [S c     ]     anchors  S, c     a new one: S becomes an anchor
    told: S d        path  [S d         ]     anchors  d        told from S

A conversation has one path, which grows; so resolving an anchor is one slice for any number of turns.
A junction has a path of its own, which never grows: it outlives the conversation that showed it.

Memory is bounded in bytes. The oldest paths that are not recent go first. A publisher must not refer to what
another replica has forgotten, and replicas see the log in slightly different orders. So only a *recent*
anchor is referred to. Time goes in generations, each a quarter of the bound in distinct bytes told; recent
are the present generation and the one before. A path that is told again as a whole, or from a recent anchor,
is recent again. `reset` makes everything old: after it only anchors that are told again are referred to.

All of this decides how many bytes are sent, never what they mean: an anchor resolves to its path or to none.
"""

from collections import OrderedDict
from struct import Struct

from radix import HASH_BYTES

_last_hash = Struct("<Q").unpack_from

BYTES_MAX = 64 << 20
"""Bytes of known paths. Blocks that a fleet caches need 8 bytes each: two thirds hold 5 million blocks, which
are 1.4 billion tokens."""

PATH_BYTES = 700
"""Memory of one path beside its hashes, with its anchors: four entries of a dictionary, two objects
(`tests/router/shared/test_known_paths.py` measures it)."""

BLOCKS_MIN = 16
"""A shorter path, or a part that ends before this depth, is no anchor. It takes 128 bytes at most in the log;
remembering it would take `PATH_BYTES`."""

ANCHORS_MAX = 4
"""Anchors of one path: the newest ends of its prompts."""


class _Known:
    """One path.

    Attributes:
        path: Packed block hashes.
        anchors: Hashes that name a part of it or all of it, oldest first.
        generation: Generation in which it was last told from a recent anchor.
        grows: False for the path of a junction.
    """

    __slots__ = ("anchors", "generation", "grows", "path")

    def __init__(self, path: bytes, anchor: int, *, grows: bool) -> None:
        self.path = path
        self.anchors = [anchor]
        self.generation = -2
        self.grows = grows


_UNKNOWN = _Known(b"", 0, grows=False), -1
"""Value for an unknown anchor: no prompt ends at that depth."""


class KnownPaths:
    """Paths by their anchors, bounded.

    Args:
        bytes_max: Most bytes held.
        blocks_min: Depth of the shallowest anchor.
    """

    def __init__(self, bytes_max: int = BYTES_MAX, blocks_min: int = BLOCKS_MIN) -> None:
        self._bytes_max = bytes_max
        self._path_bytes_max = bytes_max // 8
        self._blocks_min = blocks_min
        self._anchors: dict[int, tuple[_Known, int]] = {}
        self._paths: OrderedDict[_Known, None] = OrderedDict()
        """In the order in which they were first told in their generations."""
        self._bytes = 0
        self._generation = 0
        self._generation_bytes = 0

    def __len__(self) -> int:
        """Number of anchors."""
        return len(self._anchors)

    @property
    def size_bytes(self) -> int:
        """Memory that the paths take, as it is bounded."""
        return self._bytes

    def tell_shortly(self, path: bytes, junction_blocks: int = 0) -> int:
        """Note that the log tells a path from its deepest recent anchor, as a publisher would.

        The search begins at the end, where the anchor of a conversation is: 0.1 µs a block.

        Args:
            path: Packed block hashes.
            junction_blocks: As of `tell`.

        Returns:
            Depth of the anchor in blocks; 0 if there is none, and the path is told as a whole.
        """
        words = memoryview(path).cast("Q")
        for anchor in filter(self._anchors.__contains__, reversed(words)):
            known, blocks = self._anchors[anchor]
            if self._is_recent(known) and _agree(known.path, path, blocks):
                if len(known.path) != HASH_BYTES * blocks or not self._grow(known, path):
                    self.tell(path, blocks, junction_blocks)
                return blocks
        self.tell(path, 0, junction_blocks)
        return 0

    def go_on(self, anchor: int, blocks: int, rest: bytes, junction_blocks: int = 0) -> bytes | None:
        """Note that the log tells a path from an anchor, as a reader would.

        Args:
            anchor: Hash of the last block before the new part.
            blocks: Depth of the anchor.
            rest: Packed block hashes of the new part.
            junction_blocks: As of `tell`.

        Returns:
            The whole path; None if the anchor is not known.
        """
        known, depth = self._anchors.get(anchor, _UNKNOWN)
        if depth != blocks:
            return None
        size = HASH_BYTES * blocks
        if len(known.path) == size:
            path = known.path + rest
            if self._grow(known, path):
                return path
        else:
            path = known.path[:size] + rest
        self.tell(path, blocks, junction_blocks)
        return path

    def path_to(self, anchor: int, blocks: int) -> bytes | None:
        """Return the path of so many blocks that an anchor names; None if it is not known."""
        known, depth = self._anchors.get(anchor, _UNKNOWN)
        return known.path[: HASH_BYTES * blocks] if depth == blocks else None

    def tell(self, path: bytes, after_blocks: int = 0, junction_blocks: int = 0) -> None:
        """Note that the log tells a path.

        Args:
            path: Packed block hashes.
            after_blocks: Depth of the anchor from which it is told; 0 if it is told as a whole.
            junction_blocks: Depth at which it left the part that others share; 0 if unknown.
        """
        blocks = len(path) // HASH_BYTES
        if blocks < self._blocks_min or len(path) > self._path_bytes_max or len(path) % HASH_BYTES:
            return
        words = memoryview(path).cast("Q")
        if after_blocks:
            source = self._anchors.get(words[after_blocks - 1])
            recent = source is not None and self._is_recent(source[0])
        else:
            anchor = next(filter(self._anchors.__contains__, reversed(words)), None)
            source = self._anchors[anchor] if anchor is not None else None
            recent = True
        known_blocks = 0
        if source is not None:
            known, known_blocks = source
            if not _agree(known.path, path, known_blocks):
                return  # two paths claim one hash
            whole = len(known.path) == HASH_BYTES * known_blocks
            if recent and whole:
                self._touch(known)
            if whole and self._grow(known, path):
                return
            if self._is_recent(known):
                self._touch(known)
        if self._blocks_min <= junction_blocks < blocks and junction_blocks > known_blocks:
            self._put(path[: HASH_BYTES * junction_blocks], words[junction_blocks - 1], recent, grows=False)
        if blocks > known_blocks or (recent and not self._is_recent(known)):
            self._put(path, words[-1], recent, grows=True)

    def reset(self) -> None:
        """Refer to nothing that was told before."""
        self._generation += 2
        self._generation_bytes = 0

    def _is_recent(self, known: _Known) -> bool:
        return known.generation >= self._generation - 1

    def _put(self, path: bytes, anchor: int, recent: bool, *, grows: bool) -> None:
        """Make a path known of its own, unless it is; an anchor that named a part of another names it now."""
        if anchor in self._anchors:
            other, _ = self._anchors[anchor]
            if len(other.path) == len(path):
                if recent:
                    self._touch(other)
                return
            if self._is_recent(other) or not recent:
                return
            other.anchors.remove(anchor)
        known = _Known(path, anchor, grows=grows)
        self._anchors[anchor] = known, len(path) // HASH_BYTES
        self._paths[known] = None
        self._bytes += len(path) + PATH_BYTES
        if recent:
            self._touch(known)
        self._forget()

    def _grow(self, known: _Known, path: bytes) -> bool:
        """Let a known path go on to another one that begins with it, unless that is an anchor already."""
        (anchor,) = _last_hash(path, len(path) - HASH_BYTES)
        more = len(path) - len(known.path)
        if (
            not known.grows
            or anchor in self._anchors
            or more % HASH_BYTES
            or len(path) > self._path_bytes_max
        ):
            return False
        known.path = path
        self._bytes += more
        known.anchors.append(anchor)
        self._anchors[anchor] = known, len(path) // HASH_BYTES
        if len(known.anchors) > ANCHORS_MAX:
            del self._anchors[known.anchors.pop(0)]
        if known.generation == self._generation:
            self._count(more)
        elif known.generation == self._generation - 1:
            self._touch(known)
        if self._bytes > self._bytes_max:
            self._forget()
        return True

    def _touch(self, known: _Known) -> None:
        """Note that a path was told in this generation."""
        if known.generation != self._generation:
            known.generation = self._generation
            self._paths.move_to_end(known)
            self._count(len(known.path) + PATH_BYTES)

    def _forget(self) -> None:
        """Forget the oldest paths while there are too many; two generations take less than the bound."""
        while self._bytes > self._bytes_max:
            known, _ = self._paths.popitem(last=False)
            self._bytes -= len(known.path) + PATH_BYTES
            for anchor in known.anchors:
                del self._anchors[anchor]

    def _count(self, size_bytes: int) -> None:
        self._generation_bytes += size_bytes
        if self._generation_bytes > self._bytes_max // 4:
            self._generation += 1
            self._generation_bytes = 0


def _agree(one: bytes, other: bytes, blocks: int) -> bool:
    """True if two paths begin with the same blocks."""
    size = HASH_BYTES * blocks
    return other.startswith(one if len(one) == size else one[:size])
