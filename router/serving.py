"""Processes: one gateway in this process, or several that share its port.

With ``--workers N`` uvicorn's supervisor starts N processes on one listening socket and restarts those
that die; each builds a `router.app.GatewayProcess` of its own: they are simply replicas on one host.
Without a ``--redis-url`` the first process starts a Valkey for all of them.

    SIGTERM -> listening ends -> requests in flight end -> last operations and log lines -> status 0

What would fail in every process alike (settings, TLS files, the port) is found by the first one, before
it starts any other; a process that cannot start all the same ends with status 3, and is not restarted.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator

import uvicorn
import uvloop
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from router.errors import RouterError, StateError
from router.logs import configure_logs
from router.settings import ServerSettings, Settings
from router.shared import EmbeddedValkey
from router.tls import check_tls_files

logger = logging.getLogger(__name__)

MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus-client reads it when it is imported, so it must be set before `router.app` is."""


class GatewayConfig(uvicorn.Config):
    """uvicorn's configuration, which builds the gateway in the process that serves.

    It is pickled on its way to the processes of ``--workers``, so it holds settings, no objects.
    """

    def __init__(self, settings: Settings, redis_url: str) -> None:
        server = settings.server
        self.settings = settings
        self.redis_url = redis_url
        super().__init__(
            app="router.serving:GatewayConfig",  # replaced by `load`
            host=server.host,
            port=server.port,
            workers=server.workers,
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
            timeout_graceful_shutdown=round(server.shutdown_grace_s),
            ssl_certfile=server.ssl_certfile or None,
            ssl_keyfile=server.ssl_keyfile or None,
        )

    def configure_logging(self) -> None:
        """Set up logs and signals; the first that runs in a process of ``--workers``."""
        if hasattr(self, "settings"):
            configure_logs(self.settings.observability.log_level)
        if multiprocessing.parent_process() is not None:
            _end_on_sigterm()

    def load(self) -> None:
        """Build the gateway; called once, inside the event loop of the serving process."""
        from router.app import GatewayProcess

        try:
            self.process = GatewayProcess(
                self.settings, redis_url=self.redis_url, multiprocess_dir=os.environ.get(MULTIPROCESS_DIR)
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
        The exit status: 0 after a clean stop, 3 if it could not start.

    Raises:
        SettingsError: If a TLS file cannot be used.
    """
    check_tls_files(settings)
    configure_logs(settings.observability.log_level)
    _end_on_sigterm()
    try:
        with contextlib.closing(_bound(settings.server)) as listener:
            if settings.server.workers > 1:
                return _serve_processes(settings, listener)
            return uvloop.run(_serve_here(settings, listener))
    except RouterError as error:
        logger.error(error.message, extra={"event": "gateway.failed"})  # noqa: TRY400 - it says it all
        return STARTUP_FAILURE
    except KeyboardInterrupt:
        return 0


def _end_on_sigterm() -> None:
    """Let SIGTERM end this process the way its end ends it, so that what is open is closed.

    While uvicorn serves, it handles the signal and stops; then it raises the signal again, for whoever
    handled it before. The system's way would be to kill us there and then, with log lines unwritten and
    Valkey's directory left behind.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def _bound(server: ServerSettings) -> socket.socket:
    """The socket to listen on; nobody can connect before a gateway serves.

    Raises:
        StateError: If the address cannot be had.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in server.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((server.host, server.port))
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise StateError(f"cannot listen on {server.host}, port {server.port}: {reason}") from error
    return listener


async def _serve_here(settings: Settings, listener: socket.socket) -> int:
    """One process: everything in this event loop."""
    async with contextlib.AsyncExitStack() as stack:
        url = settings.shared.redis_url
        if not url:
            url = (await stack.enter_async_context(EmbeddedValkey())).url
        server = uvicorn.Server(GatewayConfig(settings, url))
        await server.serve([listener])
        return 0 if server.started else STARTUP_FAILURE


def _serve_processes(settings: Settings, listener: socket.socket) -> int:
    """Several processes on one socket; this one only supervises."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-metrics-"))
        os.environ[MULTIPROCESS_DIR] = folder
        url = settings.shared.redis_url or stack.enter_context(_embedded_valkey())
        supervisor = Multiprocess(GatewayConfig(settings, url), sockets=[listener])
        supervisor.run()
        failed = any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes)
    return STARTUP_FAILURE if failed else 0


@contextlib.contextmanager
def _embedded_valkey() -> Iterator[str]:
    """A Valkey for the child processes, from synchronous code."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="embedded valkey", daemon=True)
    thread.start()

    def wait_for(coroutine: Coroutine[None, None, object]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    valkey = EmbeddedValkey()
    try:
        wait_for(valkey.__aenter__())
        try:
            yield valkey.url
        finally:
            wait_for(valkey.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
