"""Hand-over of KV blocks from prefill to decode workers."""

from collections.abc import Mapping

from router.destinations import Resolve
from router.handover.mooncake import MooncakeHandover
from router.handover.nixl import NixlHandover
from router.handover.ports import Handover, Leg, Pair, PairedRequest, PairSink
from router.handover.sglang import SglangHandover

__all__ = ["Handover", "Leg", "Pair", "PairSink", "PairedRequest", "handovers"]


def handovers(resolve: Resolve | None = None) -> Mapping[str, Handover]:
    """Return all protocols by name; ``resolve`` finds bootstrap servers (`router.proxy.WorkerPool`)."""
    found = (SglangHandover(), NixlHandover(), MooncakeHandover(resolve))
    return {handover.name: handover for handover in found}
