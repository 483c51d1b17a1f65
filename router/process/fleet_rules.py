"""Rules of the fold, from several sections of the settings."""

from collections.abc import Callable

from msgspec.structs import replace

from policies import PROFILES, FleetRules, LengthBuckets, ShareOf
from router.gateway import weights
from router.settings import Settings
from router.values import token_count


def fleet_rules(
    settings: Settings, tenant_weight_of: Callable[[str], float], cache_share_of: ShareOf
) -> FleetRules:
    """Return the rules of the fold; a tenant's weight and its share of caches are asked by name."""
    placement = settings.placement
    model = PROFILES["default"]
    if placement.prefill_tokens_per_s is not None:
        model = replace(model, b_s=1.0 / placement.prefill_tokens_per_s)
    return FleetRules(
        block_tokens=placement.block_tokens,
        capacity_tokens=settings.fleet.worker_capacity_tokens,
        blocks_max=placement.tree_blocks_max,
        congestion_max_per_s=placement.congestion_max,
        lifetime_s_max=2 * settings.server.request_timeout_s,
        default_model=model,
        buckets=LengthBuckets(tuple(token_count(bound) for bound in placement.length_buckets)),
        pools=placement.cache_pools,
        weight_of=weights(settings.queue.classes, tenant_weight_of),
        quantum_s=settings.queue.fairness_quantum_s,
        fairness_window_s=settings.queue.fairness_window_s,
        links=settings.fleet.links,
        site=settings.fleet.site,
        kv_bytes=placement.models,
        cache_share_of=cache_share_of,
        copy_horizon_s=placement.copy_horizon_s,
    )
