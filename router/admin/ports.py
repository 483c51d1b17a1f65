"""What the admin API is given to work with."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from policies import FleetState, Op
from router.admin.link_view import LinkPorts
from router.admin.offload_view import OffloadPorts
from router.admin.queue_view import QueuePorts
from router.fleet import Registry, RolePlanner
from router.metrics import Metrics
from router.shared import LogStatus
from router.tenants import Door, KeysWatch, Limiter


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
    now_unix_s: Callable[[], float] = time.time
    limiter: Limiter | None = None
