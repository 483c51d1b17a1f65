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
        discovery: None where it is off.
        keys: None without a keys file.
        tokens: None without a file of admin tokens.
        vitals: Reads the vitals of all live replicas; None for one that does not answer.
        degraded: Returns a sentence for each part that does not work.
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
