"""The starts of waiting prompts: whom another prompt makes cheaper when it is placed.

A block's hash stands for all of the prompt up to it (`radix.chain_bytes`), so two prompts that have the hash
of block n in common share n blocks. A prompt is known by its blocks 1, 2, 4, 8, ...: with a dozen entries one
of a million tokens is found by anyone who shares its start, to within a factor of two of how much.
"""

from collections.abc import Iterator

HASH_BYTES = 8


class PromptStarts:
    """Finds waiting requests by what their prompts start with."""

    def __init__(self) -> None:
        self._ids: dict[bytes, dict[str, None]] = {}
        self._paths: dict[str, bytes] = {}

    def __len__(self) -> int:
        """Entries; none when nobody waits."""
        return len(self._ids)

    def add(self, request_id: str, path: bytes) -> None:
        """A request waits.

        Args:
            request_id: Of the request.
            path: Packed block hashes of its prompt.
        """
        self._paths[request_id] = path
        for _, block in _marks(path):
            self._ids.setdefault(block, {})[request_id] = None

    def discard(self, request_id: str) -> None:
        """It no longer does, if it did."""
        for _, block in _marks(self._paths.pop(request_id, b"")):
            ids = self._ids[block]
            ids.pop(request_id, None)
            if not ids:
                del self._ids[block]

    def sharing(self, path: bytes) -> Iterator[tuple[str, int]]:
        """The requests that start like a prompt, with how many blocks they share at least, the most first.

        Not to be changed while this goes on.
        """
        found: set[str] = set()
        for blocks, block in reversed(list(_marks(path))):
            for request_id in self._ids.get(block, ()):
                if request_id not in found:
                    found.add(request_id)
                    yield request_id, blocks


def _marks(path: bytes) -> Iterator[tuple[int, bytes]]:
    """The blocks by which a prompt is known, with their numbers."""
    blocks = 1
    while HASH_BYTES * blocks <= len(path):
        yield blocks, path[HASH_BYTES * (blocks - 1) : HASH_BYTES * blocks]
        blocks *= 2
