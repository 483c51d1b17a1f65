"""The data path alone: a gateway that decides nothing, for measuring what moving bytes costs.

    python -m loadtest.bench.proxy --port 9100 --workers http://127.0.0.1:9001 http://127.0.0.1:9002

serves POST requests from the given workers in turn, on uvloop, in one process. Point a load generator
at it and divide the CPU time of this process (which it prints when it ends) by the requests.
"""

import argparse
import itertools
import resource

import uvicorn
import uvloop
from fastapi import FastAPI

from router.proxy import (
    ClientConnection,
    ClientRequest,
    UpstreamRules,
    WorkerPool,
    lines_of,
    make_protocol,
)

FORWARDED = frozenset({b"authorization", b"content-type", b"accept", b"x-request-id"})


class Forwarding:
    """The least an exchange can do: hand everything over in both directions."""

    __slots__ = ("_connection", "_head", "_upstream")

    def __init__(self, request: ClientRequest, connection: ClientConnection, pool: WorkerPool) -> None:
        self._connection = connection
        self._head: tuple[int, bytes, int | None] | None = None
        lines = lines_of(request.headers, FORWARDED)
        self._upstream = pool.send(request.method, request.path, request.query, lines, (request.body,), self)

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
    pools = [WorkerPool(url, UpstreamRules(first_byte_timeout_s=600, keepalive_s=60)) for url in urls]
    next_pool = itertools.cycle(pools).__next__
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    protocol = make_protocol(
        lambda request, connection: Forwarding(request, connection, next_pool()),
        lambda method, path: method == b"POST",
    )
    config = uvicorn.Config(app, host="127.0.0.1", port=port, http=protocol, loop="none", log_config=None)
    await uvicorn.Server(config).serve()
    for pool in pools:
        pool.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"CPU: {usage.ru_utime:.2f} s user, {usage.ru_stime:.2f} s system")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description="A gateway that decides nothing, for measuring the data path."
    )
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--workers", nargs="+", required=True)
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.workers))


if __name__ == "__main__":
    main()
