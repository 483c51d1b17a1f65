"""What stands in front of every route: who may come in, and what every answer carries.

    request --> without /admin --> may they? --yes--> route --> audit, x-request-id, x-cacheway-*
                                      `------no--> 401 or 403 -----^

It is a plain ASGI layer, so that answers that never end, of the console, pass through as they come.
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
"""Of a request that changes something. What is to be explained may be as long as a client's request."""

OPEN_PATHS = frozenset(("/health", "/liveness", "/readiness", "/health_generate", "/metrics"))
"""For probes and scrapers, which have no key."""


DATA_PATHS = frozenset(("/get_model_info", "/get_server_info", "/server_info"))
"""What clients ask beside the models; it takes the gateway's own key."""

ENCODER_PATHS = frozenset(("/register_encoder_url", "/unregister_encoder_url", "/list_encoder_urls"))
"""What encoders ask on the data port. It changes the fleet: it is judged and audited as the admin API is."""


def shown_path(path: str) -> str:
    """A path without the prefix."""
    if path == PREFIX or path.startswith(PREFIX + "/"):
        return path.removeprefix(PREFIX) or "/"
    return path


def is_open(path: str) -> bool:
    """Whether a path needs no key or token."""
    return path in OPEN_PATHS or is_page(path)


class Gate:
    """The layer.

    Args:
        app: What is behind it.
        door: Knows the keys of the data API.
        access: Knows who may administer, and register encoders.
        administers: Whether the routes of the admin API are behind it.
        trail: Takes note of what they change.
        request_id_of: The id of a request, by its headers.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        door: Door,
        access: Access,
        administers: bool,
        trail: AuditTrail,
        request_id_of: Callable[[Sequence[Header]], bytes],
    ) -> None:
        self._app = app
        self._door = door
        self._access = access
        self._has_admin = administers
        self._trail = trail
        self._request_id_of = request_id_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request pass, or not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _without_prefix(scope)
        method, path, headers = scope["method"], scope["path"], scope["headers"]
        request_id, state = self._request_id_of(headers), scope["state"]
        state["request_id"], state["actor"] = request_id.decode("latin-1"), ""
        judged = path in ENCODER_PATHS or self._administers(path)
        changes = judged and needed_role(method, path) == "write"
        begun = False

        async def stamped(message: Message) -> None:
            """Every answer has these; one that no worker gave says so."""
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
            await send(message)

        try:
            self._let_in(method, path, headers, state)
        except ClientError as error:
            response = Response(error_body(error), error.status, media_type="application/json")
            await response(scope, receive, stamped)
            return
        if changes:
            try:
                receive = await _whole(scope, receive)
            except ClientError as error:
                response = Response(error_body(error), error.status, media_type="application/json")
                await response(scope, receive, stamped)
                return
        try:
            await self._app(scope, receive, stamped)
        except Exception:
            if changes and not begun:
                self._trail.ended(scope, 500)
            raise

    def _administers(self, path: str) -> bool:
        """Whether a path belongs to operators, and not to probes, clients or engines."""
        return self._has_admin and not _of_models(path) and path not in DATA_PATHS and not is_open(path)

    def _let_in(
        self, method: str, path: str, headers: Sequence[Header], state: MutableMapping[str, Any]
    ) -> None:
        """See whether a request may pass, and note who sent it, where that matters.

        Raises:
            ClientError: If it may not.
        """
        if is_open(path):
            return
        registers = path in ENCODER_PATHS
        if registers or self._administers(path):
            actor = self._access.actor(headers, registers=registers)
            state["actor"] = actor.name
            self._access.check(actor, method, path, headers, registers=registers)
            return
        if self._door.is_admin(headers):
            return
        if not self._door.is_tenant(headers):
            raise InvalidKey(presented=presented_key(headers) is not None)
        if _of_models(path):
            return
        raise ClientError(
            "This key is a tenant's; the gateway's own is needed here.", code="admin_only", status=403
        )


async def _whole(scope: Scope, receive: Receive) -> Receive:
    """Read a body that says what to change, which is short and comes at once; then what gives it out.

    Raises:
        ClientError: It is too long, or does not come.
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


def _of_models(path: str) -> bool:
    return path == "/v1/models" or path.startswith("/v1/models/")


_NO_WORKER: tuple[Header, ...] = ((b"x-cacheway-worker", b"none"), (b"x-cacheway-cached-tokens", b"0"))


def _without_prefix(scope: Scope) -> MutableMapping[str, Any]:
    """The same request with a state of its own, and a bare path."""
    path = shown_path(scope["path"])
    bare = {**scope, "state": dict(scope.get("state", {})), "path": path}
    if path != scope["path"]:
        raw = scope.get("raw_path") or b""
        bare["raw_path"] = raw.removeprefix(PREFIX.encode()) or b"/"
    return bare
