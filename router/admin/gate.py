"""ASGI layer in front of every route: authorisation, and headers of every answer.

    request --> without /admin --> allowed? --yes--> route --> audit, x-request-id, x-cacheway-*
                                      `------no--> 401 or 403 -----^

A plain ASGI layer passes the console's endless answers through as they come.
"""

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.admin.access import Access, needed_role
from router.admin.audit import AuditTrail
from router.admin.console import is_page
from router.errors import ClientError, InvalidKey, error_body
from router.proxy import Header
from router.tenants import Door, presented_key

PREFIX = "/admin"
"""Every route may be written with it, so that an ingress can send a whole folder here."""

BODY_BYTES_MAX = 1 << 20
BODY_S_MAX = 10.0
"""Seconds within which the body of a change must arrive. A body to explain may take as long as a client's."""

OPEN_PATHS = frozenset(("/health", "/liveness", "/readiness", "/health_generate", "/metrics", "/ping"))
"""For probes and scrapers, which have no key."""


TENANT_PATHS = frozenset(("/finish_session",))
"""Routes of clients that take the key of a tenant, as those of the models do."""

DATA_PATHS = frozenset(("/get_model_info", "/get_server_info", "/server_info"))
"""Routes of clients beside the models; they take the gateway's own key."""

ENCODER_PATHS = frozenset(("/register_encoder_url", "/unregister_encoder_url", "/list_encoder_urls"))
"""Routes of encoders on the data port, authorised and audited as the admin API: they change the fleet."""


ENDLESS_PATHS = frozenset(("/events",))
"""Routes whose answers never end, so that HEAD would wait for ever."""


def shown_path(path: str) -> str:
    """A path without the prefix."""
    if path == PREFIX or path.startswith(PREFIX + "/"):
        return path.removeprefix(PREFIX) or "/"
    return path


def is_open(path: str) -> bool:
    """Return True if a path needs no key or token."""
    return path in OPEN_PATHS or is_page(path)


class Gate:
    """The layer in front of an application, with the admin API's routes if ``administers``."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        door: Door,
        access: Access,
        administers: bool,
        trail: AuditTrail,
        request_id_of: Callable[[Sequence[Header]], bytes],
        has_route: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._door = door
        self._access = access
        self._has_admin = administers
        self._trail = trail
        self._request_id_of = request_id_of
        self._has_route = has_route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request pass, or not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _without_prefix(scope)
        method, path, headers = scope["method"], scope["path"], scope["headers"]
        request_id, state = self._request_id_of(headers), scope["state"]
        state["request_id"], state["actor"] = request_id.decode("latin-1"), ""
        known = self._has_route(path)
        judged = known and (path in ENCODER_PATHS or self._administers(path))
        changes = judged and needed_role(method, path) == "write"
        begun = False
        asks_head = method == "HEAD" and path not in ENDLESS_PATHS
        if asks_head:  # every route that takes GET takes HEAD (RFC 9110 section 9.3.2)
            scope["method"] = "GET"

        async def stamped(message: Message) -> None:
            """Add the headers of every answer, and the mark of one that no worker gave."""
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if changes:
                    self._trail.ended(scope, message["status"])
                said: list[Header] = list(message.get("headers", ()))
                names = {name.lower() for name, _ in said}
                said.append((b"x-request-id", request_id))
                said += [header for header in _NO_WORKER if header[0] not in names]
                message = {**message, "headers": said}
            elif asks_head:
                message = {**message, "body": b""}
            await send(message)

        try:
            self._let_in(method, path, headers, state, known=known)
        except ClientError as error:
            await _answer(error, path, request_id)(scope, receive, stamped)
            return
        if changes:
            try:
                receive = await _whole(scope, receive)
            except ClientError as error:
                await _answer(error, path, request_id)(scope, receive, stamped)
                return
        try:
            await self._app(scope, receive, stamped)
        except Exception:
            if changes and not begun:
                self._trail.ended(scope, 500)
            raise

    def _administers(self, path: str) -> bool:
        """Return True if a path belongs to operators, not to probes, clients or engines."""
        return self._has_admin and not _of_clients(path) and path not in DATA_PATHS and not is_open(path)

    def _let_in(
        self,
        method: str,
        path: str,
        headers: Sequence[Header],
        state: MutableMapping[str, Any],
        *,
        known: bool,
    ) -> None:
        """Check that a request may pass, and note its author; raise ClientError if it may not.

        A path without a route has no owner: any valid key learns that there is none.
        """
        if is_open(path):
            return
        registers = path in ENCODER_PATHS
        if known and (registers or self._administers(path)):
            actor = self._access.actor(headers, registers=registers)
            state["actor"] = actor.name
            self._access.check(actor, method, path, headers, registers=registers)
            return
        if self._door.is_admin(headers) or (not known and self._access.is_known(headers)):
            return
        if not self._door.is_tenant(headers):
            raise InvalidKey(presented=presented_key(headers) is not None)
        if _of_clients(path) or not known:
            return
        raise ClientError(
            "This key is a tenant's; the gateway's own is needed here.", code="admin_only", status=403
        )


def _answer(error: ClientError, path: str, request_id: bytes) -> Response:
    body = error_body(error, path.encode("latin-1", "replace"), request_id)
    return Response(body, error.status, media_type="application/json")


async def _whole(scope: Scope, receive: Receive) -> Receive:
    """Read the whole body of a change and return a ``receive`` that repeats it.

    Raise ClientError if the body is too long or does not come: a change is short and comes at once.
    """
    body = b""
    try:
        async with asyncio.timeout(BODY_S_MAX):
            while True:
                message = await receive()
                body += message.get("body", b"")
                if len(body) > BODY_BYTES_MAX:
                    raise ClientError(
                        f"A change takes at most {BODY_BYTES_MAX} bytes.", code="body_too_large", status=413
                    )
                if not message.get("more_body"):
                    break
    except TimeoutError as error:
        raise ClientError(
            f"The body did not come within {BODY_S_MAX:g} s.", code="read_timeout", status=408
        ) from error
    if message["type"] == "http.request":
        message = {"type": "http.request", "body": body, "more_body": False}
    first = [message]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


def _of_clients(path: str) -> bool:
    return path == "/v1/models" or path.startswith("/v1/models/") or path in TENANT_PATHS


_NO_WORKER: tuple[Header, ...] = ((b"x-cacheway-worker", b"none"), (b"x-cacheway-cached-tokens", b"0"))


def _without_prefix(scope: Scope) -> MutableMapping[str, Any]:
    """Copy a request's scope, with a state of its own and without ``/admin``."""
    path = shown_path(scope["path"])
    bare = {**scope, "state": dict(scope.get("state", {})), "path": path}
    if path != scope["path"]:
        raw = scope.get("raw_path") or b""
        bare["raw_path"] = raw.removeprefix(PREFIX.encode()) or b"/"
    return bare
