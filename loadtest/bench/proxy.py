"""Proxy that decides nothing, for ``python -m loadtest.bench.serving processes --bare``."""

import argparse
import itertools

import uvicorn
import uvloop
from fastapi import FastAPI

from router.forwarded_headers import PassedHeaders
from router.proxy import (
    ClientConnection,
    ClientRequest,
    UpstreamRules,
    WorkerPool,
    lines_of,
    make_protocol,
)

FORWARDED = PassedHeaders(("authorization", "content-type", "accept"), passes_keys=True)


class Forwarding:
    """The least an exchange can do: hand everything over in both directions."""

    __slots__ = ("_connection", "_head", "_upstream")

    def __init__(self, request: ClientRequest, connection: ClientConnection, pool: WorkerPool) -> None:
        self._connection = connection
        self._head: tuple[int, bytes, int | None] | None = None
        lines = lines_of(request.head.headers, FORWARDED)
        self._upstream = pool.send(request.head, lines, (request.body,), self)

    def pause(self) -> None:
        """Hold the worker back."""
        self._upstream.pause()

    def resume(self) -> None:
        """Let it go on."""
        self._upstream.resume()

    def client_left(self) -> None:
        """Drop the request."""
        self._upstream.abort()

    def interrupt(self) -> None:
        """Drop the request and its client."""
        self._upstream.abort()
        self._connection.abort()

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Keep the head for the first body bytes."""
        self._head = (status, lines, length)

    def upstream_data(self, data: bytes) -> None:
        """Pass body bytes on."""
        if self._head is None:
            self._connection.send_body(data)
        else:
            self._send_head(data)

    def upstream_end(self) -> None:
        """Pass the end on."""
        if self._head is not None:
            self._send_head(b"")
        self._connection.finish()

    def upstream_failed(self, error: Exception) -> None:
        """Pass the failure on as an aborted connection."""
        self._connection.abort()

    def _send_head(self, body: bytes) -> None:
        assert self._head is not None
        (status, lines, length), self._head = self._head, None
        self._connection.send_head(status, lines, length=length, body=body)


async def serve(port: int, urls: list[str]) -> None:
    """Serve until a signal comes."""
    rules = UpstreamRules(first_byte_timeout_s=600, keepalive_s=60)
    next_pool = itertools.cycle([WorkerPool(url, rules) for url in urls]).__next__
    app = FastAPI()

    @app.get("/readiness")
    async def readiness() -> dict[str, str]:
        return {"status": "ok"}

    protocol = make_protocol(
        lambda request, connection: Forwarding(request, connection, next_pool()),
        lambda method, path: method == b"POST",
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=port, http=protocol, loop="none", log_config=None)
    print('{"event": "gateway.started"}', flush=True)  # as the log of a gateway
    await uvicorn.Server(config).serve()


def main() -> None:
    """Run from the command line of ``cacheway serve``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker-urls", nargs="+", required=True)
    options, _ = parser.parse_known_args()
    uvloop.run(serve(options.port, options.worker_urls))


if __name__ == "__main__":
    main()
