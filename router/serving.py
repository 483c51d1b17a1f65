"""Processes: one gateway in this process, or several that share its port.

With ``--workers N`` a supervisor (`router.supervisor`) starts N processes on one port; each
builds a `router.app.GatewayProcess` of its own: they are simply replicas on one host. Without a
``--redis-url`` the first process starts a Valkey for all of them. How each of them ends is told in
`router.server`.

Each process listens with a socket of its own (``SO_REUSEPORT``), and the kernel draws one of them for
every connection. From one socket for all, whoever wakes first would take most of a burst: of 16 connections
at once to four processes one took all 16 (Linux 6.18), for as long as their clients keep them.

What would fail in every process alike (settings, TLS and keys files, the port) is found by the first one,
before it starts any other; a process that cannot start all the same ends with status 3, and is not restarted.
"""

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from uvicorn.config import STARTUP_FAILURE

from router.errors import RouterError, StateError
from router.logs import configure_logs
from router.open_files import raise_open_files
from router.request_trace import check_request_trace
from router.server import GatewayServer
from router.settings import ServerSettings, Settings
from router.shared import EmbeddedValkey
from router.supervisor import Supervisor
from router.tenants import check_keys_file
from router.tls import check_tls_files

if TYPE_CHECKING:
    from router.app import GatewayProcess

logger = logging.getLogger(__name__)

MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus-client reads it when it is imported, so it must be set before `router.app` is."""


class GatewayConfig(uvicorn.Config):
    """uvicorn's configuration, which builds the gateway in the process that serves.

    Attributes:
        settings: The effective settings.
        process: The gateway, once `load` has built it.
    """

    process: "GatewayProcess"

    def __init__(self, settings: Settings, redis_url: str, requests_max: int = sys.maxsize) -> None:
        server = settings.server
        self.settings = settings
        self.redis_url = redis_url
        self.requests_max = requests_max
        super().__init__(
            app="router.serving:GatewayConfig",  # replaced by `load`
            host=server.host,
            port=server.port,
            loop="uvloop",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            backlog=4096,
            timeout_keep_alive=round(server.keepalive_s),
            ssl_certfile=server.ssl_certfile or None,
            ssl_keyfile=server.ssl_keyfile or None,
        )

    def load(self) -> None:
        """Build the gateway; called once, inside the event loop of the serving process."""
        from router.app import GatewayProcess

        try:
            self.process = GatewayProcess(
                self.settings,
                redis_url=self.redis_url,
                multiprocess_dir=os.environ.get(MULTIPROCESS_DIR),
                requests_max=self.requests_max,
            )
        except Exception:
            logger.exception("the gateway cannot start", extra={"event": "gateway.failed"})
            sys.exit(STARTUP_FAILURE)
        self.app = self.process.api
        self.http = self.process.protocol
        super().load()


def serve(settings: Settings) -> int:
    """Run the gateway until it is told to stop.

    Returns:
        The exit status: 0 after a clean stop, 3 if it could not start, 128 + signal if a second
        signal told it to end at once.

    Raises:
        SettingsError: If a TLS file, the keys file or the file of the request trace cannot be used.
    """
    check_tls_files(settings)
    check_keys_file(settings)
    check_request_trace(settings.observability)
    configure_logs(settings.observability.log_level)
    requests_max = raise_open_files(settings.upstream.connections_max)
    _end_on_sigterm()
    several = settings.server.workers > 1
    try:
        if several:
            _bound(settings.server).close()  # a port that may be shared would be shared with a stranger, too
        with contextlib.closing(_bound(settings.server, shared=several)) as listener:
            return uvloop.run(_serve(settings, listener, requests_max))
    except RouterError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return 0


def _end_on_sigterm() -> None:
    """Let SIGTERM end this process the way its end ends it, so that what is open is closed.

    It holds until a server or supervisor handles signals, and after it. The system's way would be to kill
    us there and then, with log lines unwritten and Valkey's directory left behind.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def _bound(server: ServerSettings, *, shared: bool = False) -> socket.socket:
    """A socket to listen on; nobody can connect before a gateway serves.

    Args:
        server: Where.
        shared: Other sockets of this user may be bound to the same port if they are shared, too.

    Raises:
        StateError: If the address cannot be had.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in server.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((server.host, server.port))
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise StateError(f"cannot listen on {server.host}, port {server.port}: {reason}") from error
    return listener


async def _serve(settings: Settings, listener: socket.socket, requests_max: int) -> int:
    """Serve in this process or in several, with a Valkey of our own if there is no other."""
    async with contextlib.AsyncExitStack() as stack:
        url = settings.shared.redis_url
        if not url:
            url = (await stack.enter_async_context(EmbeddedValkey())).url
        if settings.server.workers == 1:
            return await _serve_here(settings, url, listener, requests_max)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-metrics-"))
        os.environ[MULTIPROCESS_DIR] = folder
        arguments = (settings, url, requests_max)
        supervisor = Supervisor(listener, _serve_in_child, arguments, count=settings.server.workers)
        return await supervisor.run()


async def _serve_here(settings: Settings, redis_url: str, listener: socket.socket, requests_max: int) -> int:
    config = GatewayConfig(settings, redis_url, requests_max)
    config.load()
    # What is there now lives as long as the process: full passes of the garbage collector, of
    # 20 ms without this, need not look at it again.
    gc.collect()
    gc.freeze()
    server = GatewayServer(config)
    await server.serve([listener])
    return server.status


def _serve_in_child(settings: Settings, redis_url: str, requests_max: int) -> None:
    """What a process of ``--workers`` runs."""
    configure_logs(settings.observability.log_level)
    _end_on_sigterm()
    try:
        with contextlib.closing(_bound(settings.server, shared=True)) as listener:
            status = uvloop.run(_serve_here(settings, redis_url, listener, requests_max))
    except RouterError as error:
        status = _failed(error)
    sys.exit(status)


def _failed(error: RouterError) -> int:
    """Say why there is no gateway; the status of its process."""
    logger.error(error.message, extra={"event": "gateway.failed"})
    return STARTUP_FAILURE
