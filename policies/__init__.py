"""What to do: pure decisions over frozen views, and the fold that makes the fleet's state."""

from policies.ops import (
    BytesPerToken,
    Finished,
    FirstToken,
    Fitted,
    Left,
    Op,
    Placed,
    WorkerGone,
    WorkerPut,
    decode_ops,
    encode_ops,
)
from policies.views import Candidates, Chosen, RequestView, Shed

__all__ = [
    "BytesPerToken",
    "Candidates",
    "Chosen",
    "Finished",
    "FirstToken",
    "Fitted",
    "Left",
    "Op",
    "Placed",
    "RequestView",
    "Shed",
    "WorkerGone",
    "WorkerPut",
    "decode_ops",
    "encode_ops",
]
