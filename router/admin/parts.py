"""The parts of a process that the admin API shows and changes."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx

from router.discovery import Discovery
from router.fleet.kv_events import KvEvents
from router.gateway import Gateway
from router.live_settings import LiveSettings
from router.own_policies import OwnPolicies
from router.pairs import PairPlugin, RolePlanner
from router.proxy import Ending
from router.shared import Vitals
from router.tenants import Door, KeysWatch, TokensWatch


@dataclass(frozen=True, slots=True)
class AdminParts:
    """One process, as its operators see it; None stands for parts that are off or not configured.

    ``vitals`` reads those of all live replicas, None for one that does not answer; ``degraded`` returns a
    sentence for each part that does not work; ``finish_session`` ends a tenant's session, False if it is not
    known.
    """

    version: str
    gateway: Gateway
    live: LiveSettings
    client: httpx.AsyncClient
    pairs: PairPlugin
    roles: RolePlanner
    kv_events: KvEvents
    discovery: Discovery | None
    door: Door
    keys: KeysWatch | None
    tokens: TokensWatch | None
    ending: Ending
    vitals: Callable[[], Awaitable[Mapping[str, Vitals | None]]]
    degraded: Callable[[], tuple[str, ...]]
    own_policies: OwnPolicies
    finish_session: Callable[[str, str], bool]
    now_unix_s: Callable[[], float] = time.time
