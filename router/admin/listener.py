"""Further listeners of a process: FastAPI applications on ports of their own, beside the data port.

They share the gateway's event loop and HTTP protocol (`router.proxy.GatewayProtocol`), with the same limits
and deadlines. Each has a bound on connections of its own (`router.open_files`), so that a crowd at one port
takes nothing from another. The data port's server handles the signals; listeners end with the tasks of the
process, after the last request there, so that operators can watch the end.

``--prometheus-port`` has a listener for /metrics in every process of ``--workers``: the first one to bind the
port serves it for all, the others try again every few seconds and take over when it dies.
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

from router.patient_server import PatientServer
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
"""Seconds for answers under way when the listener ends; streams never end."""

BACKLOG = 128
"""Connections that the kernel accepts before this process does."""

RETRY_S = 2.0
"""Between two tries to get a port that another process has."""


class _QuietServer(PatientServer):
    """A second server of the process, which handles no signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers end for `ENDING_S`; then close the remaining connections, idle or not."""
        await super().shutdown(sockets)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


@dataclass
class Listener:
    """Serves an application on a port, while `serve` runs; without ``tls`` over plain HTTP."""

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
        """Serve on a bound socket until cancelled; then close it and all connections."""
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
    return False


def _nobody(request: ClientRequest, connection: ClientConnection) -> Exchange:
    raise AssertionError("nothing is proxied here")


def admin_tls(admin: AdminSettings) -> ssl.SSLContext | None:
    """Return the TLS context of the admin API; None for plain HTTP."""
    if not admin.ssl_certfile:
        return None
    return server_context(admin.ssl_certfile, admin.ssl_keyfile, admin.ssl_ca_certs)


def make_metrics_api(exposition: Callable[[], tuple[bytes, str]]) -> FastAPI:
    """Build the application of scrapers; ``exposition`` returns the body and its content type."""
    api = FastAPI(openapi_url=None)

    @api.get("/metrics")
    async def metrics() -> Response:
        body, content_type = exposition()
        return Response(body, media_type=content_type)

    return api


async def serve_metrics(listener: Listener, host: str, port: int, *, alone: bool) -> None:
    """Serve until cancelled; a taken port is worth a warning only if the process is ``alone``."""
    while True:
        bound = await _bound(host, port, alone=alone)
        with contextlib.closing(bound):
            await listener.serve(bound)


async def _bound(host: str, port: int, *, alone: bool) -> socket.socket:
    """Wait for the port; return the listening socket."""
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
