"""Further listeners of a process: FastAPI applications on ports of their own, beside the data port.

They share the event loop with the gateway and nothing else: what is slow or broken here is uvicorn's plain
protocol, not that of clients. They leave the signals to the server of the data port, and end with the tasks
of the process, after the last request there: until then operators can watch it leave.
"""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from router.settings import AdminSettings
from router.tls import server_context

CONNECTIONS_MAX = 512
"""Of one listener; more get 503. Those who come here are few, and nothing limits how slowly heads come."""

ENDING_S = 1
"""How long answers that are under way may take once the listener ends, seconds; streams never end."""


class _QuietServer(uvicorn.Server):
    """A second server in the process, which leaves the signals to the first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def listen(api: FastAPI, listener: socket.socket, **options: Any) -> None:
    """Serve until cancelled; then nothing of it is left open.

    Args:
        api: What is served.
        listener: Bound to a port; it is closed in the end.
        options: More for `uvicorn.Config`.
    """
    config = uvicorn.Config(
        api,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        limit_concurrency=CONNECTIONS_MAX,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=ENDING_S,
        **options,
    )
    server = _QuietServer(config)
    try:
        await server.serve(sockets=[listener])
    finally:
        if server.started:
            await server.shutdown([listener])


def admin_tls(admin: AdminSettings) -> dict[str, Any]:
    """What `listen` is told of TLS for the admin API."""
    if not admin.ssl_certfile:
        return {}
    context = server_context(admin.ssl_certfile, admin.ssl_keyfile, admin.ssl_ca_certs)
    return {"ssl_context_factory": lambda *_: context}
