"""Processes: one gateway in this process, or several that share its port.

With ``--workers N`` a supervisor (`router.supervisor`) starts N processes on one port; each builds a
`router.app.GatewayProcess`, a replica of its own. Without ``--redis-url`` the first process starts a Valkey
for all of them. `router.server` describes their end.

Each process listens with a socket of its own (``SO_REUSEPORT``), and the kernel draws one for every
connection. With one socket for all, the first process to wake takes most of a burst: of 16 connections at
once to four processes one took all 16 (Linux 6.18).

The first process checks settings, TLS and keys files and the port before it starts any other. A process that
cannot start all the same ends with status 3, and is not restarted.
"""

import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from uvicorn.config import STARTUP_FAILURE

from router.discovery import check_discovery
from router.errors import RouterError, StateError
from router.freed_memory import keep_freed_memory
from router.logs import configure_logs
from router.open_files import UNLIMITED, OpenFiles, raise_open_files
from router.own_policies import check_own_policies
from router.picker_rules import check_picker
from router.process.greeting import processes_greeting
from router.process.kv_events import check_kv_events
from router.proxy import Handshakes
from router.request_trace import check_request_trace
from router.secret_files import with_secret_files
from router.server import EarlyEnd, GatewayServer
from router.settings import Settings
from router.shared import EmbeddedValkey
from router.sources import Loaded, Origin
from router.supervisor import Supervisor
from router.tenants import check_keys_file
from router.tls import check_tls_files, server_context
from router.tokenizing import check_tokenizers
from router.tracing import check_tracing

if TYPE_CHECKING:
    from router.app import GatewayProcess

logger = logging.getLogger(__name__)

MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus-client reads it when it is imported, so it must be set before `router.app` is."""


class GatewayConfig(uvicorn.Config):
    """uvicorn's configuration, which builds the gateway in the process that serves.

    `load` sets ``process``; ``handshakes`` are the TLS handshakes under way, None without HTTPS.
    """

    process: "GatewayProcess"
    handshakes: Handshakes | None = None

    def __init__(
        self,
        settings: Settings,
        redis_url: str,
        files: OpenFiles = UNLIMITED,
        admin_listener: socket.socket | None = None,
        origins: Mapping[str, Origin] = MappingProxyType({}),
    ) -> None:
        server = settings.server
        self.settings = settings
        self.redis_url = redis_url
        self.files = files
        self.admin_listener = admin_listener
        self.origins = origins
        super().__init__(
            app=f"{__name__}:GatewayConfig",  # replaced by `load`
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
        )

    def load(self) -> None:
        """Build the gateway; called once, inside the event loop of the serving process."""
        from router.app import GatewayProcess

        try:
            self.process = GatewayProcess(
                self.settings,
                redis_url=self.redis_url,
                multiprocess_dir=os.environ.get(MULTIPROCESS_DIR),
                files=self.files,
                admin_listener=self.admin_listener,
                origins=self.origins,
            )
        except Exception:
            logger.exception("the gateway cannot start", extra={"event": "gateway.failed"})
            sys.exit(STARTUP_FAILURE)
        self.app = self.process.api
        server = self.settings.server
        if server.ssl_certfile:
            context = server_context(server.ssl_certfile, server.ssl_keyfile, server.ssl_ca_certs)
            self.handshakes = Handshakes(self.process.protocol, context)
        self.http = self.handshakes or self.process.protocol  # type: ignore[assignment]  # it makes one
        super().load()


def serve(loaded: Loaded) -> int:
    """Run the gateway until it is told to stop, and return the exit status.

    It is 0 after a clean stop, 3 if the gateway could not start, 128 + signal after a second signal. Raise
    SettingsError if a file of secrets, TLS, keys or the trace, a tokenizer or an extra cannot be used.
    """
    settings = with_secret_files(loaded.settings)
    loaded = replace(loaded, settings=settings)
    check_tls_files(settings)
    check_keys_file(settings.tenancy.keys_file, settings.admin.tokens_file, settings.queue.classes)
    check_request_trace(settings.observability)
    check_tracing(settings.observability)
    check_tokenizers(settings.placement)
    check_discovery(settings.discovery, settings.picker.pool)
    check_picker(settings.picker)
    check_kv_events(settings)
    check_own_policies(settings)
    configure_logs(settings.observability.log_level)
    if loaded.note:
        logger.warning(loaded.note, extra={"event": "flags.translated"})
    listeners = bool(settings.admin.port) + (settings.observability.prometheus_port is not None)
    files = raise_open_files(settings.upstream.connections_max, listeners)
    _end_on_sigterm()
    several = settings.server.workers > 1
    try:
        if several:
            with _listening(settings):
                pass  # a port that may be shared would be shared with a stranger, too
        with _listening(settings, shared=several) as sockets:
            return uvloop.run(_serve(loaded, sockets, files))
    except RouterError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return 0


def _end_on_sigterm() -> None:
    """Let SIGTERM exit cleanly, until a server or supervisor handles signals, and after it.

    The default would lose unwritten log lines and leave Valkey's directory behind.
    """
    signal.signal(signal.SIGTERM, EarlyEnd())


@dataclass(frozen=True, slots=True)
class _Sockets:
    """Bound sockets, not listening yet; ``admin`` is None if the data port serves the admin API, too."""

    data: socket.socket
    admin: socket.socket | None


@contextlib.contextmanager
def _listening(settings: Settings, *, shared: bool = False) -> Iterator[_Sockets]:
    """Bind all ports, to be ``shared`` with sockets of this user; raise StateError if one cannot be bound."""
    server, admin = settings.server, settings.admin
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(
            contextlib.closing(bound(server.host, server.port, "--port", shared=shared))
        )
        if not admin.port:
            yield _Sockets(data, None)
            return
        listener = bound(admin.host, admin.port, "--admin-port", shared=shared)
        yield _Sockets(data, stack.enter_context(contextlib.closing(listener)))


def bound(host: str, port: int, flag: str = "--port", *, shared: bool = False) -> socket.socket:
    """Return a bound socket, as `_listening` does; ``flag`` sets the port."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        if error.errno == errno.EADDRINUSE:
            reason += f"; stop the program that has it, or choose another port with {flag}"
        raise StateError(f"cannot listen on {host}, port {port}: {reason}") from error
    return listener


async def _serve(loaded: Loaded, sockets: _Sockets, files: OpenFiles) -> int:
    """Serve in this process or in several, with a Valkey of our own if no Redis is set."""
    settings = loaded.settings
    async with contextlib.AsyncExitStack() as stack:
        url = settings.shared.redis_url
        if not url:
            url = (await stack.enter_async_context(EmbeddedValkey())).url
        if settings.server.workers == 1:
            return await _serve_here(loaded, url, sockets, files)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-metrics-"))
        os.environ[MULTIPROCESS_DIR] = folder
        arguments = (loaded, url, files)
        logger.info("starting processes", extra=processes_greeting(settings))
        supervisor = Supervisor(sockets.data, _serve_in_child, arguments, count=settings.server.workers)
        return await supervisor.run()


async def _serve_here(loaded: Loaded, redis_url: str, sockets: _Sockets, files: OpenFiles) -> int:
    keep_freed_memory()
    config = GatewayConfig(loaded.settings, redis_url, files, sockets.admin, loaded.origins)
    config.load()
    # Objects made so far live as long as the process: full passes of the garbage collector, of
    # 20 ms without this, need not look at it again.
    gc.collect()
    gc.freeze()
    server = GatewayServer(config)
    await server.serve([sockets.data])
    return server.status


def _serve_in_child(loaded: Loaded, redis_url: str, files: OpenFiles) -> None:
    settings = loaded.settings
    configure_logs(settings.observability.log_level)
    _end_on_sigterm()
    try:
        with _listening(settings, shared=True) as sockets:
            status = uvloop.run(_serve_here(loaded, redis_url, sockets, files))
    except RouterError as error:
        status = _failed(error)
    sys.exit(status)


def _failed(error: RouterError) -> int:
    """Log why the gateway cannot start; return its exit status."""
    logger.error(error.message, extra={"event": "gateway.failed"})
    return STARTUP_FAILURE
