"""The settings as what the parts of a process are told: plain rules, at the start and whenever one changes.

Those of a gateway's own parts are in `router.gateway.rules`.
"""

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

from policies import (
    BOOTSTRAP_HOST_LABEL,
    PROFILES,
    CachePool,
    FleetRules,
    KvBytes,
    LengthBuckets,
    LinkRules,
)
from router.destinations import Destinations
from router.fleet import label_hosts
from router.gateway import weights
from router.proxy import ClientLimits, ClientQuota
from router.settings import FleetSettings, ServerSettings, Settings
from router.values import token_count


def fleet_rules(settings: Settings, tenant_weight_of: Callable[[str], float]) -> FleetRules:
    """What the fold needs to know.

    Args:
        settings: All of them.
        tenant_weight_of: Weight of a tenant, by its name.
    """
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
        pools={
            name: CachePool(
                pool.capacity_tokens, pool.fetch_base_s, pool.fetch_tokens_per_s, pool.fetch_tokens_min
            )
            for name, pool in placement.cache_pools.items()
        },
        weight_of=weights(settings.queue.classes, tenant_weight_of),
        quantum_s=settings.queue.fairness_quantum_s,
        fairness_window_s=settings.queue.fairness_window_s,
        links={
            name: LinkRules(
                bytes_per_s=link.gbps * 1e9 / 8,
                rtt_s=link.rtt_ms / 1e3,
                cap_ratio=link.cap_ratio,
                loss_ratio_max=link.loss_ratio_max,
            )
            for name, link in settings.fleet.links.items()
        },
        site=settings.fleet.site,
        kv_bytes={
            name: KvBytes(
                model.kv_bytes_per_token, model.window_bytes_per_token, model.window_tokens, model.state_bytes
            )
            for name, model in placement.models.items()
        },
    )


def destinations_of(fleet: FleetSettings) -> Destinations:
    """Where workers may be."""
    named = {urlsplit(worker.url).hostname or "" for worker in fleet.workers}
    named |= {worker.labels.get(BOOTSTRAP_HOST_LABEL, "").strip("[]") for worker in fleet.workers}
    named |= {host for worker in fleet.workers for host in label_hosts(worker.labels)}
    return Destinations(
        fleet.worker_networks,
        fleet.worker_hosts,
        loopback=not fleet.disable_loopback_workers,
        named=named,
        keyed=fleet.worker_api_key is not None,
    )


def client_limits(server: ServerSettings) -> ClientLimits:
    """What a client may ask of one connection."""
    return ClientLimits(
        body_bytes_max=server.body_bytes_max,
        headers_max=server.header_count_max,
        head_bytes_max=server.header_bytes_max,
        receive_s_max=server.read_timeout_s,
    )


def scrape_limits(server: ServerSettings) -> ClientLimits:
    """What a scraper may ask of one connection: it sends no body."""
    return replace(client_limits(server), body_bytes_max=0)


def held_bytes_max(server: ServerSettings) -> int:
    """How many bytes of bodies a process holds, 0 for any number; the longest body must fit."""
    return server.held_bytes_max and max(server.held_bytes_max, server.body_bytes_max)


def client_quota(server: ServerSettings, requests_max: int) -> ClientQuota:
    """How much one client may take of a process that has open files for so many requests."""
    return ClientQuota(
        connections_max=min(server.connections_max or requests_max, requests_max),
        connections_per_client_max=server.connections_per_client_max,
        requests_per_s=server.requests_per_client_per_s,
        requests_burst=server.requests_per_client_burst,
        trusted_proxies=server.trusted_proxies,
    )
