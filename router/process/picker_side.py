"""The endpoint picker of one process, and the loops that it needs."""

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from router.discovery import Discovery
from router.gateway import Gateway
from router.metrics import Metrics
from router.pairs import PairPlugin
from router.process.client_side import ClientSide
from router.process.loops import Loop
from router.proxy import Route
from router.relaying import Routes
from router.settings import Settings

if TYPE_CHECKING:
    from router.picker import Picker


def make_picker(
    settings: Settings,
    gateway: Gateway,
    metrics: Metrics,
    clients: ClientSide,
    discovery: Discovery | None,
    pairs: PairPlugin,
    routes: Routes,
) -> "Picker | None":
    """Make it; None where it is off."""
    if not settings.picker.enabled:
        return None
    # An extra; importing gRPC takes some 0.15 s and 25 MB.
    from router.picker import Picker

    picker = Picker(
        settings,
        gateway,
        metrics,
        held=clients.held,
        ending=clients.ending,
        settled=lambda: discovery is None or discovery.first_settled.is_set(),
        share=pairs.share,
        serves=lambda method, path: settings.picker.pass_any_path or _is_listed(routes, method, path),
    )
    metrics.collect_hooks.append(partial(picker.report, metrics))
    return picker


def _is_listed(routes: Routes, method: bytes, path: bytes) -> bool:
    """Return True if a list names the path, so that it may reach a worker."""
    if routes(method, path) is not Route.APPLICATION:
        return True
    if method not in (b"GET", b"HEAD"):
        return False
    # A server in front of an engine may resolve dots, and then mean another path.
    of_model = path.startswith(b"/v1/models/") and b".." not in unquote_to_bytes(path)
    return of_model or path in (b"/health", b"/v1/models")


def picker_loops(settings: Settings, picker: "Picker | None") -> list[Loop]:
    """Return its tasks: the servers, and the pool's objects."""
    if picker is None:
        return []
    loops: list[Loop] = [("picker", picker.run)]
    pool = settings.picker.pool
    if pool is not None and pool.name:
        from router.picker.pool_objects import make_pool_objects

        loops.append(("pool objects", make_pool_objects(settings.discovery, pool, picker.intents).run))
    return loops
