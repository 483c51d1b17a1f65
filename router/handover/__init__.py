"""How prefill workers hand KV blocks to decode workers."""

from collections.abc import Callable, Mapping, Sequence

from router.handover.mooncake import MooncakeHandover
from router.handover.nixl import NixlHandover
from router.handover.ports import Handover, Leg, Pair, PairedRequest, PairSink
from router.handover.sglang import SglangHandover

__all__ = ["Handover", "Leg", "Pair", "PairSink", "PairedRequest", "handovers"]


def handovers(params_missing: Callable[[str], None] = lambda _: None) -> Mapping[str, Handover]:
    """All protocols, by name.

    Args:
        params_missing: See `NixlHandover`.
    """
    every: Sequence[Handover] = (SglangHandover(), NixlHandover(params_missing), MooncakeHandover())
    return {handover.name: handover for handover in every}
