"""Names of workers for tenants, who may tell two workers apart but not learn where they are.

A name is a hash of the worker's id under the seed that all replicas share and no client can guess (decision
0059): the same at every replica, and after a restart as long as Redis keeps the seed. ``GET /workers`` shows
operators the name of each worker (``opaque_name``).
"""

from hashlib import blake2b

from router.gateway.identity import PromptHasher

NAME_BYTES = 6
"""Of 100,000 workers two have one name with a probability of 0.002 %."""

NAMES_MAX = 10_000
"""Names that are remembered; making one takes 1 us."""


class WorkerNames:
    """Names under the seed of a hasher, which may change."""

    def __init__(self, hasher: PromptHasher) -> None:
        self._hasher = hasher
        self._seed = hasher.seed
        self._names: dict[str, bytes] = {}

    def name_of(self, worker_id: str) -> bytes:
        """Return the name of a worker: ``w-`` and 12 hexadecimal digits."""
        seed = self._hasher.seed
        if seed != self._seed or len(self._names) >= NAMES_MAX:
            self._names.clear()
            self._seed = seed
        name = self._names.get(worker_id)
        if name is None:
            key = b"worker" + seed.to_bytes(8, "little")
            digest = blake2b(worker_id.encode(), key=key, digest_size=NAME_BYTES)
            name = self._names[worker_id] = b"w-" + digest.hexdigest().encode()
        return name
