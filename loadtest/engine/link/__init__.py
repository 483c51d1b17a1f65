"""A link between sites that the KV transfers of several engine processes share.

    engine (prefill, there) ──POST /transfers──> link process ──answers when the bytes are here──> engine
                            ──POST /computed───>     │
    test or benchmark       ──POST /_fault─────>     └── slower for a while, or dead

``python -m loadtest.engine.link`` is the process; engines behind it have ``--kv-link URL``. No KV is sent:
the process computes durations, so that one machine can stand for a line of 100 Gbit/s.
"""

from loadtest.engine.link.egress import Egress, seconds_of
from loadtest.engine.link.shaped import ShapedLink, Transfer

__all__ = ["Egress", "ShapedLink", "Transfer", "seconds_of"]
