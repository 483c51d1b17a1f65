"""Calls from a decode engine to the port of a prefill engine, which may be in another process.

One HTTP request stands for the ZeroMQ, RDMA and HTTP of real engines. It lasts as long as the transfer; its
connection is its sign of life, which a side that gives up closes.
"""

import asyncio
from typing import Any

import orjson


class PeerLost(Exception):
    """The peer cannot be reached, or went away."""


class PeerRefused(Exception):
    """The peer answered that it will not."""


async def call(host: str, port: int, path: str, fields: dict[str, Any] | None = None) -> Any:
    """Post ``fields`` to a peer, or get without them; return the decoded answer, however long it takes.

    Raises:
        PeerLost: There is no answer.
        PeerRefused: The answer is an error.
    """
    body = b"" if fields is None else orjson.dumps(fields)
    head = f"{'GET' if fields is None else 'POST'} {path} HTTP/1.1\r\nhost: {host}\r\n"
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise PeerLost(f"{host}:{port}: {error}") from error
    try:
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read()
    except OSError as error:
        raise PeerLost(f"{host}:{port}: {error}") from error
    finally:
        # Not closed in order: a call that is given up must be seen to be given up at once.
        writer.transport.abort()
    status, _, rest = answer.partition(b"\r\n\r\n")
    if not status.startswith(b"HTTP/1.1 "):
        raise PeerLost(f"{host}:{port}: no answer")
    if status.split(b" ", 2)[1] != b"200":
        raise PeerRefused(rest.decode(errors="replace"))
    try:
        return orjson.loads(rest) if rest else None
    except orjson.JSONDecodeError as error:
        raise PeerLost(f"{host}:{port}: half an answer") from error
