"""Prompt identity as chained block hashes.

A prompt is cut into blocks of `BLOCK_TOKENS` tokens (`BLOCK_BYTES` of text). The hash of each block is seeded
with the hash of the block before it:

    root ──► h0 = H(block 0, seed=root) ──► h1 = H(block 1, seed=h0) ──► ...

One 64-bit number therefore stands for a block and everything before it, and two paths that agree at block i
agree at every block before i. The root carries the parts that must never be shared: namespace seed, tenant,
model, LoRA. A last block that is not full is left out, since it changes when the conversation goes on.

A path is its hashes as packed little-endian ``u64``, the only form in which a prompt leaves the process. The
tree reads paths in the machine's byte order, so the gateway runs on little-endian machines only.

H is XXH3-64, which is not cryptographic: a tenant that chooses text to collide with its own roots gains a
wrong prediction, never another tenant's data.
"""

from array import array
from collections.abc import Sequence
from struct import Struct

from xxhash import xxh3_64_intdigest

BLOCK_TOKENS = 256
"""Tokens per block: fine enough to price a match, coarse enough for 4,096 blocks per million tokens."""

BLOCK_BYTES = 1024
"""Bytes of text per block: `BLOCK_TOKENS` at the 4 bytes per token usual for English and code."""

HASH_BYTES = 8
"""Size of one block hash in a path."""

unpack_hash = Struct("<Q").unpack_from
"""``unpack_hash(path, at)[0]`` is the hash at ``at``, 0.1 µs; a slice and ``int.from_bytes`` take 0.2."""


def root_hash(seed: int, *parts: bytes) -> int:
    """Hash the parts that two prompts must share before their blocks may be compared: salt, model, LoRA.

    Lengths are hashed too, so ``(b"ab", b"c")`` and ``(b"a", b"bc")`` differ. ``seed`` is unsigned, of 64
    bits.
    """
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return xxh3_64_intdigest(framed, seed)


def chain_bytes(data: bytes | bytearray | memoryview, root: int, block_bytes: int = BLOCK_BYTES) -> bytes:
    """Chain the full blocks of a byte string to a root (`root_hash`) and return their packed hashes.

    Costs 0.17 µs per block of 1 KiB (``python -m loadtest.bench.tree``).
    """
    return chain_prompt(data, root, block_bytes)[0]


def chain_prompt(
    data: bytes | bytearray | memoryview, root: int, block_bytes: int = BLOCK_BYTES
) -> tuple[bytes, int, int]:
    """Do the same, and return also the hash of all of the data, and that of its first block.

    Data shorter than a block counts as one.
    """
    hashes: list[int] = []
    whole, begin, end, size = root, 0, block_bytes, len(data)
    while end <= size:
        whole = xxh3_64_intdigest(data[begin:end], whole)
        hashes.append(whole)
        begin, end = end, end + block_bytes
    whole = xxh3_64_intdigest(data[begin:], whole)
    if not hashes:
        return b"", whole, whole
    return array("Q", hashes).tobytes(), whole, hashes[0]


class BlockChain:
    """Chain of a prompt that comes in pieces; its path is that of `chain_bytes`, for any cuts.

    Attributes:
        tail: Bytes behind the last full block.
    """

    def __init__(self, root: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.tail = b""
        self._block_bytes = block_bytes
        self._last = root
        self._paths: list[bytes] = []

    def add(self, data: bytes | memoryview) -> None:
        """Add a piece; only the block that it completes and its end are copied."""
        piece, size = memoryview(data), self._block_bytes
        if self.tail:
            missing = size - len(self.tail)
            self.tail += piece[:missing]
            if len(self.tail) < size:
                return
            self._chain(self.tail)
            piece = piece[missing:]
        full = len(piece) // size * size
        if full:
            self._chain(piece[:full])
        self.tail = bytes(piece[full:])

    def _chain(self, blocks: bytes | memoryview) -> None:
        path = chain_bytes(blocks, self._last, self._block_bytes)
        self._paths.append(path)
        self._last = unpack_hash(path, len(path) - HASH_BYTES)[0]

    @property
    def path(self) -> bytes:
        """Packed hashes of the full blocks so far."""
        return b"".join(self._paths)

    @property
    def whole_and_first(self) -> tuple[int, int]:
        """Hashes of all of the prompt and of its first block, as of `chain_prompt`."""
        whole = xxh3_64_intdigest(self.tail, self._last)
        return whole, unpack_hash(self._paths[0])[0] if self._paths else whole


def chain_token_ids(ids: Sequence[int], root: int, block_tokens: int = BLOCK_TOKENS) -> bytes:
    """Chain the full blocks of a sequence of token ids, 0 to 2**32 - 1, as `chain_bytes` does."""
    return chain_bytes(memoryview(array("I", ids)).cast("B"), root, block_tokens * 4)


def words_of(path: bytes) -> "memoryview[int]":
    """Return the hashes of a path as integers; raise ValueError if the path is not whole hashes."""
    if len(path) % HASH_BYTES:
        check_path(path)
    return memoryview(path).cast("Q")


def check_path(path: bytes) -> None:
    """Raise ValueError if a path is not whole hashes."""
    if len(path) % HASH_BYTES:
        raise ValueError(f"a path of {len(path)} bytes is not whole block hashes")
