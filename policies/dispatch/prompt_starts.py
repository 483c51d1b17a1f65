"""Starts of waiting prompts: requests that become cheaper when another prompt is placed.

A block's hash stands for all of the prompt up to it (`radix.chain_bytes`). A prompt is indexed by its blocks
1, 2, 4, 8, ...: a dozen entries find one of a million tokens, to within a factor of two of the shared length.
"""

from collections.abc import Iterator

from radix import HASH_BYTES


class PromptStarts:
    """Finds waiting requests by the start of their prompts."""

    def __init__(self) -> None:
        self._ids: dict[bytes, dict[str, None]] = {}
        self._paths: dict[str, bytes] = {}

    def __len__(self) -> int:
        """Entries; none when no request waits."""
        return len(self._ids)

    def add(self, request_id: str, path: bytes) -> None:
        """Index a request by the packed block hashes of its prompt."""
        self._paths[request_id] = path
        for _, block in _marks(path):
            self._ids.setdefault(block, {})[request_id] = None

    def discard(self, request_id: str) -> None:
        """Remove a request, if it is indexed."""
        for _, block in _marks(self._paths.pop(request_id, b"")):
            ids = self._ids[block]
            ids.pop(request_id, None)
            if not ids:
                del self._ids[block]

    def sharing(self, path: bytes) -> Iterator[tuple[str, int]]:
        """Requests that start like a prompt, with the blocks that they share at least, the most first.

        The index must not change while this is iterated.
        """
        found: set[str] = set()
        for blocks, block in reversed(list(_marks(path))):
            for request_id in self._ids.get(block, ()):
                if request_id not in found:
                    found.add(request_id)
                    yield request_id, blocks


def _marks(path: bytes) -> Iterator[tuple[int, bytes]]:
    """Blocks by which a prompt is indexed, with their numbers."""
    blocks = 1
    while HASH_BYTES * blocks <= len(path):
        yield blocks, path[HASH_BYTES * (blocks - 1) : HASH_BYTES * blocks]
        blocks *= 2
