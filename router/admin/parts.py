"""The parts of a process that the admin API shows and changes."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx

from router.discovery import Discovery
from router.fleet import RolePlanner
from router.fleet.kv_events import KvEvents
from router.gateway import Gateway
from router.live_settings import LiveSettings
from router.proxy import Ending
from router.shared import Vitals
from router.tenants import KeysWatch, TokensWatch


@dataclass(frozen=True, slots=True)
class AdminParts:
    """One process, as its operators see it.

    Attributes:
        version: Of the gateway.
        gateway: Decides, and knows the fleet, the registry, the log and the metrics.
        live: The settings as they are now.
        client: Asks workers.
        roles: Plans roles.
        kv_events: Follows what engines say of their caches.
        discovery: Of pods; None where it is off.
        keys: Watches the tenants' keys file; None without one.
        tokens: Watches the file of admin tokens; None without one.
        ending: Whether this process was told to end.
        vitals: Asks for the vitals of all replicas that are alive; None of one whose word does not arrive.
        degraded: Names what does not work, a sentence each.
        now_unix_s: Wall clock.
    """

    version: str
    gateway: Gateway
    live: LiveSettings
    client: httpx.AsyncClient
    roles: RolePlanner
    kv_events: KvEvents
    discovery: Discovery | None
    keys: KeysWatch | None
    tokens: TokensWatch | None
    ending: Ending
    vitals: Callable[[], Awaitable[Mapping[str, Vitals | None]]]
    degraded: Callable[[], tuple[str, ...]]
    now_unix_s: Callable[[], float] = time.time
