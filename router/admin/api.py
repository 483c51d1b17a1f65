"""Applications beside the proxied routes: FastAPI, with one file of routes per noun.

    data port    health, models, encoders           for clients, engines and probes
    admin port   health, and everything else        for operators

With ``admin.port`` 0 one application serves both, on the data port.

FastAPI writes ``GET /openapi.json`` from the routes. This module adds what all have in common: the shape of
errors, the needed role, and the descriptions of the groups.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field
from pydantic import BaseModel, Field
from starlette.routing import Route

from router.admin.access import Access, needed_role
from router.admin.audit import AuditTrail, add_audit_view
from router.admin.console import add_console
from router.admin.decisions_view import add_decisions_view
from router.admin.engine_calls import add_engine_calls
from router.admin.errors import StrictRoute, add_errors
from router.admin.explain import add_explain
from router.admin.gate import Gate, is_open
from router.admin.health import add_health, add_metrics, add_replicas_view
from router.admin.link_view import add_link_view
from router.admin.parts import AdminParts
from router.admin.peers import add_encoders, add_models, add_peers
from router.admin.queue_view import add_queue_view, add_tickets
from router.admin.role_view import add_role_view
from router.admin.sessions import add_sessions
from router.admin.settings_view import add_policies, add_settings
from router.admin.suggestions import suggestion_of
from router.admin.tenants import add_tenants
from router.admin.tree_view import add_kv_events_view, add_tree_view
from router.admin.worker_view import add_discovery_view
from router.admin.workers import add_workers
from router.console import EventStream
from router.pass_through import OWN_ROOTS
from router.proxy import Header


def make_api(parts: AdminParts, console: EventStream, lifespan: Any = None) -> FastAPI:
    """Build the application of a data port that serves the admin API, too; ``lifespan`` runs the tasks."""
    api = _made(parts, lifespan, _LISTED, administers=True)
    _add_data(api, parts)
    _add_admin(api, parts, console)
    return api


def make_data_api(parts: AdminParts, lifespan: Any) -> FastAPI:
    """Build the application of the data port, if the admin API has a port of its own."""
    port = parts.live.current.admin.port
    elsewhere = f"The admin API is on port {port}; with --admin-port 0 it is on this one."
    api = _made(parts, lifespan, elsewhere, administers=False)
    _add_data(api, parts, root=True)
    return api


def make_admin_api(parts: AdminParts, console: EventStream) -> FastAPI:
    """Build the application of the admin API's own port."""
    api = _made(parts, None, f"{_LISTED} Requests of clients go to the data port.", administers=True)
    add_health(api, parts)
    add_metrics(api, parts)
    _add_admin(api, parts, console)
    return api


_LISTED = "GET /openapi.json lists all routes."

ABOUT = """Everything here may also be written with `/admin` in front, and is asked with
`Authorization: Bearer TOKEN`: a token of `admin.tokens_file` (made by `cacheway keys admin`), or
`server.api_key` without such a file. Routes that read need the role read, all others the role write.

A change holds for all replicas, and is written to the audit."""

TAGS = {
    "workers": "Workers, their roles and health; adding, changing, draining and removing.",
    "queue": "Requests that wait for a worker with room, at all replicas.",
    "settings": "Settings, and changes of them while the gateway runs.",
    "decisions": "Reasons of past decisions, and dry runs of new ones.",
    "tree": "Known cached blocks of the workers.",
    "links": "Links between sites, and prefill in another site.",
    "tenants": "Tenants and their limits. Changed in the keys file, which is read again.",
    "replicas": "The copies of this gateway that share one log.",
    "audit": "Changes and their authors.",
    "console": "The console's page and its data.",
    "health": "For probes and scrapers; without a token.",
    "models": "Requests of clients that are not proxied.",
    "encoders": "For SGLang's encoders, which register themselves.",
    "peers": "The dialect of the older routers.",
}


class ErrorDetail(BaseModel):
    """Description of an error."""

    message: str = Field(description="For people.")
    type: str = Field(description="Kind of the error, by its cause.", examples=["invalid_request_error"])
    param: str | None = Field(description="Wrong part of the request, if it is one.")
    code: str | None = Field(description="For programs.", examples=["worker_not_found"])


class ErrorBody(BaseModel):
    """Every error, in OpenAI's shape."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "The request is at fault: 400 a wrong value, 401 no valid token, 403 a token without "
        "the right, 404 an unknown name, 405 another method.",
    },
    "5XX": {
        "description": "The gateway or a worker is at fault: 502 a worker did not answer, 503 none can now.",
    },
}
"""Errors of every route, for the document only: FastAPI would build a validator of them for each route, which
took 40 % of the time that it needs to make the application."""


def _made(parts: AdminParts, lifespan: Any, elsewhere: str, *, administers: bool) -> FastAPI:
    """Make an application without routes, and without FastAPI's pages: they load outside scripts."""
    door = parts.door
    api = FastAPI(
        title="Cacheway",
        version=parts.version,
        summary="A cache-affinity gateway for LLM fleets.",
        lifespan=lifespan,
        openapi_url="/openapi.json" if administers else None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.router.route_class = StrictRoute
    api.openapi = lambda: _described(api)  # type: ignore[method-assign]
    access = Access(door, parts.tokens, parts.live.current.admin.allowed_hosts)

    def has_route(path: str) -> bool:
        return any(isinstance(each, Route) and each.path_regex.match(path) for each in api.routes)

    def hint(path: str, headers: Sequence[Header]) -> str:
        """Suggest the intended path; the admin API's address only to clients that may use it."""
        mine = access.is_known(headers) and (administers or path.split("/")[1] in OWN_ROOTS)
        return suggestion_of(path) or (elsewhere if mine else "")

    add_errors(api, hint)
    api.add_middleware(
        Gate,
        access=access,
        has_route=has_route,
        door=door,
        administers=administers,
        trail=AuditTrail(parts.gateway.log, parts.now_unix_s, parts.gateway.metrics.admin_change),
        request_id_of=parts.gateway.reader.request_id_of,
    )
    return api


def _add_data(api: FastAPI, parts: AdminParts, *, root: bool = False) -> None:
    """Add the routes for clients, engines, probes and scrapers; ``/`` is the console's where that is, too."""
    add_health(api, parts, root=root)
    add_metrics(api, parts, moved=parts.live.current.observability.prometheus_port is not None)
    add_models(api, parts)
    add_sessions(api, parts)
    add_encoders(api, parts.gateway.registry)


def _add_admin(api: FastAPI, parts: AdminParts, console: EventStream) -> None:
    """Add the routes for operators."""
    add_workers(api, parts)
    add_peers(api, parts)
    add_engine_calls(api, parts)
    add_tenants(api, parts)
    add_queue_view(api, parts)
    add_tickets(api, parts)
    add_role_view(api, parts)
    add_link_view(api, parts)
    add_discovery_view(api, parts)
    add_kv_events_view(api, parts)
    add_replicas_view(api, parts)
    add_audit_view(api, parts.gateway.fleet)
    add_explain(api, parts)
    add_decisions_view(api, parts)
    add_tree_view(api, parts)
    add_settings(api, parts)
    add_policies(api, parts)
    add_console(api, console)


def _described(api: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, made at the first request."""
    if api.openapi_schema is None:
        api.openapi_schema = _schema(api)
    return api.openapi_schema


def _schema(api: FastAPI) -> dict[str, Any]:
    fields = {
        status: create_model_field(f"Error_{status}", ErrorBody, mode="serialization") for status in ERRORS
    }
    for route in api.routes:
        if isinstance(route, APIRoute):
            route.responses = {**ERRORS, **route.responses}
            route.response_fields = {**fields, **route.response_fields}
    schema = get_openapi(
        title=api.title, version=api.version, summary=api.summary, description=ABOUT, routes=api.routes
    )
    schema["components"].setdefault("securitySchemes", {})["token"] = {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the tokens file, or the gateway's own key.",
    }
    used = set()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            used.update(operation["tags"])
            summary, _, more = operation.get("description", "").partition("\n")
            operation["summary"] = summary.rstrip(".")
            operation["description"] = more.strip() or summary
            if not is_open(path):
                operation["security"] = [{"token": []}]
                operation["x-role"] = needed_role(method.upper(), path)
    schema["tags"] = [{"name": name, "description": about} for name, about in TAGS.items() if name in used]
    return schema
