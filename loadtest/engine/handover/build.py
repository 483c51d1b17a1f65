"""An engine's part in a hand-over protocol, from its settings."""

from loadtest.engine.faults import Faults
from loadtest.engine.handover.carriers import Fabric, FaultyWay, SharedLink
from loadtest.engine.handover.legs import Handover, Transfers, Worker
from loadtest.engine.handover.settings import HandoverSettings
from loadtest.engine.handover.sglang import DecodeRooms, PrefillRooms
from loadtest.engine.handover.vllm import KvTransfers
from loadtest.engine.kv_encoding import cache_groups
from loadtest.engine.profiles import EngineProfile


def build_handover(
    settings: HandoverSettings, profile: EngineProfile, worker: Worker, faults: Faults
) -> Handover:
    """Make the part of an engine in the hand-over of requests, not yet listening."""
    way = SharedLink(settings.kv_link) if settings.kv_link else Fabric(profile.handover)
    shape = profile.shape
    transfers = Transfers(FaultyWay(way, faults), shape.kv_bytes, profile.prefill.prompt_s, shape.layers)
    block_tokens = profile.rules.block_tokens
    if settings.protocol != "sglang":
        return KvTransfers(settings, worker, transfers, faults, cache_groups(shape), block_tokens)
    if settings.part == "prefill":
        return PrefillRooms(settings, worker, transfers, profile.dp_ranks, block_tokens)
    return DecodeRooms(settings, worker, transfers)
