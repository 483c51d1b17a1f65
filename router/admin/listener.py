"""Further listeners of a process: FastAPI applications on ports of their own, beside the data port.

They share the event loop with the gateway, and its way of speaking HTTP (`router.proxy.GatewayProtocol`): the
same framing, limits and deadlines. Each has a bound on connections of its own, which is taken from the open
files beforehand (`router.open_files`), so that a crowd at one port takes nothing from another. They leave the
signals to the server of the data port, and end with the tasks of the process, after the last request there:
until then operators can watch it leave.

``--prometheus-port`` has one that serves only /metrics, in every process of ``--workers``: whoever gets the
port serves it for all (each process answers for its siblings too), the others try again every few seconds and
take over when it dies.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Response

from router.proxy import (
    ClientConnection,
    ClientLimits,
    ClientRequest,
    Clients,
    Exchange,
    GatewayProtocol,
    Handshakes,
    make_protocol,
)
from router.settings import AdminSettings
from router.tls import server_context

logger = logging.getLogger(__name__)

ENDING_S = 1
"""How long answers that are under way may take once the listener ends, seconds; streams never end."""

BACKLOG = 128
"""Connections that the kernel accepts before this process does."""

RETRY_S = 2.0
"""Between two tries to get a port that another process has."""


class _QuietServer(uvicorn.Server):
    """A second server in the process, which leaves the signals to the first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers end for `ENDING_S`; then close what is left, idle or not."""
        await super().shutdown(sockets)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


@dataclass
class Listener:
    """Serves an application on a port, while `serve` runs.

    Attributes:
        api: What is served.
        clients: Counts and bounds the connections.
        limits: Of each connection and request.
        keepalive_s: Longest time between two requests of a connection.
        tls: For HTTPS.
    """

    api: FastAPI
    clients: Clients
    limits: ClientLimits
    keepalive_s: float
    tls: ssl.SSLContext | None = None
    _protocol: type[GatewayProtocol] | None = field(default=None, init=False)

    def use(self, limits: ClientLimits) -> None:
        """Limit by this from now on."""
        self.limits = limits
        if self._protocol is not None:
            self._protocol.limits = limits

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled; then nothing of it is left open.

        Args:
            listener: Bound to a port; it is closed in the end.
        """
        self._protocol = make_protocol(_nobody, _not_proxied, self.limits, clients=self.clients)
        handshakes = None if self.tls is None else Handshakes(self._protocol, self.tls)
        config = uvicorn.Config(
            self.api,
            http=self._protocol if handshakes is None else handshakes,  # type: ignore[arg-type]  # it makes one
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            backlog=BACKLOG,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=round(self.keepalive_s),
            timeout_graceful_shutdown=ENDING_S,
        )
        server = _QuietServer(config)
        try:
            await server.serve(sockets=[listener])
        finally:
            if server.started:
                await server.shutdown([listener])
            if handshakes is not None:
                handshakes.end()


def _not_proxied(method: bytes, path: bytes) -> bool:
    """Leave every request to the application."""
    return False


def _nobody(request: ClientRequest, connection: ClientConnection) -> Exchange:
    raise AssertionError("nothing is proxied here")


def admin_tls(admin: AdminSettings) -> ssl.SSLContext | None:
    """How the admin API serves HTTPS; None if it does not."""
    if not admin.ssl_certfile:
        return None
    return server_context(admin.ssl_certfile, admin.ssl_keyfile, admin.ssl_ca_certs)


def make_metrics_api(exposition: Callable[[], tuple[bytes, str]]) -> FastAPI:
    """Build what the listener serves.

    Args:
        exposition: Gives the body and its content type.
    """
    api = FastAPI(openapi_url=None)

    @api.get("/metrics")
    async def metrics() -> Response:
        body, content_type = exposition()
        return Response(body, media_type=content_type)

    return api


async def serve_metrics(listener: Listener, host: str, port: int, *, alone: bool) -> None:
    """Serve until cancelled.

    Args:
        listener: What serves.
        host: Address to listen on.
        port: Port to listen on.
        alone: Whether there are no sibling processes, so that a taken port is worth a warning.
    """
    while True:
        bound = await _bound(host, port, alone=alone)
        with contextlib.closing(bound):
            await listener.serve(bound)


async def _bound(host: str, port: int, *, alone: bool) -> socket.socket:
    """The listening socket, once it is free."""
    warned = False
    while True:
        try:
            return socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            if alone and not warned:
                warned = True
                logger.warning(
                    "cannot serve metrics on %s:%d: %s; trying again",
                    host,
                    port,
                    error.strerror,
                    extra={"event": "metrics.unavailable"},
                )
            await asyncio.sleep(RETRY_S)
