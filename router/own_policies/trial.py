"""The fleets on which a user's policy is tried when it is loaded.

They are small and made by the gateway's own fold: idle workers and busy ones, prompts that are cached on some
workers, on all of them and nowhere. A policy that fails in one of these cases would fail in production.
"""

from collections.abc import Iterator

import numpy as np

from policies import Candidates, FleetState, Placed, RequestView, WorkerPut
from radix import FULL_ATTENTION, HASH_BYTES

SIZES = (1, 2, 5, 40)
"""Workers of each fleet: one alone, few that the gateway prices one by one, and many."""

_AT_US = 1_000_000_000
_BLOCK_TOKENS = 256
_BLOCKS = 16


def trials() -> Iterator[tuple[RequestView, Candidates]]:
    """Yield a request and its candidates for each fleet and each state of its caches."""
    for size in SIZES:
        fleet, slots = FleetState(), np.arange(size)
        for number in range(size):
            fleet.apply(WorkerPut(f"w{number}:1", 1, "static", f"http://w{number}:1"))
        yield _asked(fleet, slots, b"", 0)
        for number in range(size):
            fleet.apply(_placed(number, number % 3))
        for sequence, prompt in enumerate((_path(0), _path(9), _path(0)[: 2 * HASH_BYTES]), 1):
            yield _asked(fleet, slots, prompt, sequence)


def _asked(
    fleet: FleetState, slots: "np.ndarray[tuple[int], np.dtype[np.intp]]", path: bytes, sequence: int
) -> tuple[RequestView, Candidates]:
    tokens = float(max(len(path) // HASH_BYTES * _BLOCK_TOKENS, 1) + 7)
    candidates = fleet.candidates(
        slots, (path,) if path else (), FULL_ATTENTION, tokens, float(_BLOCK_TOKENS), _AT_US
    )
    return RequestView(1 + sequence, 1, tokens, 300.0, sequence), candidates


def _placed(number: int, prompt: int) -> Placed:
    tokens = _BLOCKS * _BLOCK_TOKENS
    return Placed(
        f"r{number}", _AT_US, f"w{number}:1", "trial", 400_000, tokens, tokens + 300, (_path(prompt),)
    )


def _path(prompt: int) -> bytes:
    """Return the packed hashes of a prompt; all prompts begin with the same two blocks."""
    hashes = [1, 2, *(1000 * (prompt + 1) + block for block in range(_BLOCKS - 2))]
    return b"".join(each.to_bytes(HASH_BYTES, "little") for each in hashes)
