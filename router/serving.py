"""Processes: one gateway in this process, or several that share its port.

With ``--workers N`` uvicorn's supervisor starts N processes on one listening socket and restarts those
that die; each builds a `router.app.GatewayProcess` of its own: they are simply replicas on one host.
Without a ``--redis-url`` the first process starts a Valkey for all of them.
"""

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Coroutine, Iterator

import uvicorn
import uvloop
from uvicorn.supervisors import Multiprocess

from router.logs import configure_logs
from router.settings import Settings
from router.shared import EmbeddedValkey

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
        """Ours, in every process."""
        if hasattr(self, "settings"):
            configure_logs(self.settings.observability.log_level)

    def load(self) -> None:
        """Build the gateway; called once, inside the event loop of the serving process."""
        from router.app import GatewayProcess

        self.process = GatewayProcess(
            self.settings, redis_url=self.redis_url, multiprocess_dir=os.environ.get(MULTIPROCESS_DIR)
        )
        self.app = self.process.api
        self.http = self.process.protocol
        super().load()


def serve(settings: Settings) -> int:
    """Run the gateway until it is told to stop.

    Returns:
        The exit status: 0 after a clean stop, 3 if it could not start.
    """
    configure_logs(settings.observability.log_level)
    try:
        if settings.server.workers > 1:
            return _serve_processes(settings)
        return uvloop.run(_serve_here(settings))
    except KeyboardInterrupt:
        return 0


async def _serve_here(settings: Settings) -> int:
    """One process: everything in this event loop."""
    async with contextlib.AsyncExitStack() as stack:
        url = settings.shared.redis_url
        if not url:
            url = (await stack.enter_async_context(EmbeddedValkey())).url
        server = uvicorn.Server(GatewayConfig(settings, url))
        await server.serve()
        return 0 if server.started else 3


def _serve_processes(settings: Settings) -> int:
    """Several processes on one socket; this one only supervises."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-metrics-"))
        os.environ[MULTIPROCESS_DIR] = folder
        url = settings.shared.redis_url or stack.enter_context(_embedded_valkey())
        config = GatewayConfig(settings, url)
        listener = config.bind_socket()
        stack.callback(listener.close)
        Multiprocess(config, sockets=[listener]).run()
    return 0


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
