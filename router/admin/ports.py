"""What the admin API is given to work with."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx

from policies import FleetState, Op
from router.admin.link_view import LinkPorts
from router.admin.offload_view import OffloadPorts
from router.admin.queue_view import QueuePorts
from router.admin.settings_view import SettingsPorts
from router.console import EventStream
from router.discovery import Discovery
from router.fleet import Registry, RolePlanner
from router.fleet.kv_events import KvEvents
from router.gateway import Gateway
from router.metrics import Metrics
from router.shared import LogStatus, Vitals
from router.tenants import Door, KeysWatch, Limiter, TokensWatch


async def _no_vitals() -> dict[str, Vitals | None]:
    return {}


@dataclass(frozen=True, slots=True)
class AdminPorts:
    """What the API may see and do."""

    version: str
    replica: str
    fleet: FleetState
    registry: Registry
    publish: Callable[[Op], None]
    now_us: Callable[[], int]
    log_status: Callable[[], LogStatus]
    request_id_of: Callable[[Sequence[tuple[bytes, bytes]]], bytes]
    door: Door
    keys: KeysWatch | None
    metrics: Metrics
    client: httpx.AsyncClient
    shutting_down: Callable[[], bool]
    queue: QueuePorts
    links: LinkPorts
    offload: OffloadPorts
    roles: RolePlanner
    settings: SettingsPorts
    now_unix_s: Callable[[], float] = time.time
    limiter: Limiter | None = None
    discovery: Discovery | None = None
    kv_events: KvEvents | None = None
    tokens: TokensWatch | None = None
    gateway: Gateway | None = None
    """Whose decisions are explained; None in tests of other routes."""
    body_bytes_max: int = 0
    """Longest body of a request that is to be explained."""
    replicas_vitals: Callable[[], Awaitable[dict[str, Vitals | None]]] = _no_vitals
    degraded: Callable[[], tuple[str, ...]] = tuple
    console: EventStream | None = None
    """Feeds the console's pages; None in tests of other routes."""
    hits: Callable[[str], tuple[int, int]] = lambda _: (0, 0)
    """Of a worker, by its id: prompt tokens of this replica's requests there, and how many it had cached."""
