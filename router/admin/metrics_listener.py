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

from router.admin.listener import listen

logger = logging.getLogger(__name__)

RETRY_S = 2.0


async def serve_metrics(
    host: str, port: int, exposition: Callable[[], tuple[bytes, str]], *, alone: bool
) -> None:
    """Serve /metrics until cancelled.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        exposition: Gives the body and its content type.
        alone: Whether there are no sibling processes, so that a taken port is worth a warning.
    """
    api = FastAPI(openapi_url=None)

    @api.get("/metrics")
    async def metrics() -> Response:
        body, content_type = exposition()
        return Response(body, media_type=content_type)

    while True:
        listener = await _bound(host, port, alone=alone)
        with contextlib.closing(listener):
            await listen(api, listener)


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
