"""``--prometheus-port``: a listener that serves only /metrics.

Started by `router.app`, in every process of ``--workers``: whoever gets the port serves it for all
(each process answers for its siblings too), the others try again every few seconds and take over
when it dies.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from fastapi import FastAPI, Response

from router.admin.listener import Listener

logger = logging.getLogger(__name__)

RETRY_S = 2.0


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
