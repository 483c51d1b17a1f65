"""The applications beside what is proxied, made of one file of routes per noun.

    data port    health, models, encoders           what clients, engines and probes ask
    admin port   health, and everything else        what operators ask

With ``admin.port`` 0 one application serves both, on the data port.
"""

from typing import Any

from fastapi import Depends, FastAPI

from router.admin.access import Access
from router.admin.audit import AuditTrail
from router.admin.audit_view import add_audit_view
from router.admin.bucket_view import add_bucket_view
from router.admin.console import add_console
from router.admin.decisions_view import add_decisions_view
from router.admin.discovery_view import add_discovery_view
from router.admin.encoders import add_encoders
from router.admin.errors import add_errors
from router.admin.events import add_events
from router.admin.explain import add_explain
from router.admin.gate import Gate
from router.admin.health import add_health
from router.admin.kv_events_view import add_kv_events_view
from router.admin.link_view import add_link_view
from router.admin.models import add_models
from router.admin.offload_view import add_offload_view
from router.admin.openapi import ERRORS, describe
from router.admin.parameters import known_parameters
from router.admin.peers import add_peers
from router.admin.policies_view import add_policies
from router.admin.ports import AdminPorts
from router.admin.queue_view import add_queue_view
from router.admin.replicas_view import add_replicas_view
from router.admin.role_view import add_role_view
from router.admin.settings_view import add_settings
from router.admin.shadow_view import add_shadow_view
from router.admin.tenants import add_tenants
from router.admin.tickets import add_tickets
from router.admin.tree_view import add_tree_view
from router.admin.workers import add_workers


def make_api(ports: AdminPorts, lifespan: Any = None) -> FastAPI:
    """Build everything in one: what the data port serves if the admin API has none of its own."""
    api = _made(ports, lifespan, _LISTED, administers=True)
    _add_data(api, ports)
    _add_admin(api, ports)
    return api


def make_data_api(ports: AdminPorts, lifespan: Any) -> FastAPI:
    """Build what the data port serves beside what is proxied, if the admin API has a port of its own."""
    port = ports.settings.live.current.admin.port
    api = _made(
        ports,
        lifespan,
        f"The admin API is on port {port}; with --admin-port 0 it is on this one, as in the older routers.",
        administers=False,
    )
    _add_data(api, ports)
    return api


def make_admin_api(ports: AdminPorts) -> FastAPI:
    """Build what the port of the admin API serves."""
    api = _made(ports, None, f"{_LISTED} What clients send goes to the data port.", administers=True)
    add_health(api, ports, with_metrics=True)
    _add_admin(api, ports)
    return api


_LISTED = "GET /openapi.json lists what there is."


def _made(ports: AdminPorts, lifespan: Any, elsewhere: str, *, administers: bool) -> FastAPI:
    """An application without routes.

    Pages for people are left out: FastAPI's load their scripts from the internet.
    """
    api = FastAPI(
        title="Cacheway",
        version=ports.version,
        summary="A cache-affinity gateway for LLM fleets.",
        lifespan=lifespan,
        openapi_url="/openapi.json" if administers else None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERRORS,
        dependencies=[Depends(known_parameters)],
    )
    describe(api)
    add_errors(api, elsewhere)
    api.add_middleware(
        Gate,
        door=ports.door,
        access=Access(ports.door, ports.tokens, ports.settings.live.current.admin.allowed_hosts),
        administers=administers,
        trail=AuditTrail(
            publish=ports.publish,
            now_us=ports.now_us,
            now_unix_s=ports.now_unix_s,
            replica=ports.replica,
            counted=ports.metrics.admin_change,
        ),
        request_id_of=ports.request_id_of,
    )
    return api


def _add_data(api: FastAPI, ports: AdminPorts) -> None:
    """What clients, engines, probes and scrapers ask."""
    apart = ports.settings.live.current.observability.prometheus_port is not None
    add_health(api, ports, with_metrics=not apart)
    add_models(api, ports)
    add_encoders(api, ports.registry)


def _add_admin(api: FastAPI, ports: AdminPorts) -> None:
    """What operators ask."""
    add_workers(api, ports)
    add_peers(api, ports)
    add_tenants(api, ports.keys, ports.limiter, ports.now_unix_s)
    add_queue_view(api, ports.queue)
    add_tickets(api, ports)
    add_bucket_view(api, ports.queue)
    add_link_view(api, ports.links)
    add_offload_view(api, ports.offload)
    add_role_view(api, ports.roles)
    add_discovery_view(api, ports.discovery)
    add_kv_events_view(api, ports.registry, ports.fleet, ports.kv_events)
    add_replicas_view(api, ports)
    add_audit_view(api, ports.fleet)
    if ports.gateway is not None:
        add_explain(api, ports.gateway, ports.body_bytes_max, ports.now_unix_s)
        add_decisions_view(api, ports.gateway)
        add_shadow_view(api, ports.gateway)
        add_tree_view(api, ports.gateway)
    add_settings(api, ports.settings)
    add_policies(api, lambda: ports.settings.live.current)
    add_console(api)
    if ports.console is not None:
        add_events(api, ports.console)
