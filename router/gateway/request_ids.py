"""Ids of requests at their workers: random, so that no client can name another's request.

Engines know a request by its id: vLLM takes ``x-request-id`` for it (``_base_request_id`` in
``entrypoints/openai/engine/serving.py``), mixes up two requests of the same id, and finds the blocks of a
hand-over by it. A client's own id is for its answer, the log and the views; it never goes to a worker.

Randomness is drawn for many ids at once: an id costs 0.15 us, a draw of its own would cost 1 us.
"""

import secrets
from collections.abc import Iterator

ID_BYTES = 16
"""128 random bits each: nobody can guess one, and no two of a fleet are the same."""

DRAWN_AT_ONCE = 256


def request_ids() -> Iterator[bytes]:
    """Yield ids without end, ``req-`` and 32 hexadecimal digits."""
    while True:
        drawn = secrets.token_hex(ID_BYTES * DRAWN_AT_ONCE).encode()
        for start in range(0, len(drawn), 2 * ID_BYTES):
            yield b"req-" + drawn[start : start + 2 * ID_BYTES]
