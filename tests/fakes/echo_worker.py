"""A worker that serves every path and reports each request: real sockets, streamed bodies, WebSockets."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fakes.socket_worker import SocketWorker

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, section 1.3."""


@dataclass
class Got:
    """A request; ``body_bytes`` grows while it comes in."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class EchoWorker(SocketWorker):
    """Use it as an async context manager.

    Args:
        models: Names that it lists.

    Attributes:
        got: Requests that were no probes, the oldest first.
        reads: Cleared to leave bodies unread.
        refuses: Status with which it answers before it reads a body; 0 to read it.
        answers: Functions that answer requests for a path: status and body.
        parents: Bases of the models that are adapters.
        breaks: Paths at which it sends the begin of an event stream and closes.
    """

    def __init__(self, *models: str) -> None:
        self.models = models or ("m",)
        self.got: list[Got] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.refuses = 0
        self.breaks: set[str] = set()
        self.answers: dict[str, Callable[[Got], Awaitable[tuple[int, str]]]] = {}
        self.parents: dict[str, str] = {}
        self.tunnels: list[asyncio.StreamWriter] = []
        super().__init__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        fields = [line.split(": ", 1) for line in head[1:] if line]
        got = Got(method, target, {name.lower(): value for name, value in fields})
        if got.path in ("/health", "/metrics", "/get_server_info", "/server_info"):
            self._answer(writer, 200 if got.path == "/health" else 404, b"{}")
            return True
        if got.path == "/v1/models":
            entries = [
                {"id": name, "object": "model", "parent": self.parents.get(name)} for name in self.models
            ]
            self._answer(writer, 200, json.dumps({"object": "list", "data": entries}).encode())
            return True
        self.got.append(got)
        if "upgrade" in got.headers:
            await self._tunnel(got, reader, writer)
            return False
        if self.refuses:
            self._answer(writer, self.refuses, b'{"error": "refused"}')
            while await reader.read(1 << 16):  # closing with input unread would reset the answer
                pass
            return False
        await self._read(got, reader)
        if got.path in self.breaks:
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            writer.write(b"10\r\nevent: x\ndata:\n\n\r\n")
            await writer.drain()
            return False
        if got.path in self.answers:
            status, text = await self.answers[got.path](got)
            self._answer(writer, status, text.encode())
            return True
        status, said = self.said(got)
        self._answer(writer, status, json.dumps(said).encode())
        return True

    def said(self, got: Got) -> tuple[int, dict[str, Any]]:
        """The status and the body of an answer."""
        return 200, {
            "path": got.target,
            "method": got.method,
            "worker": self.worker_id,
            "bytes": len(got.body),
        }

    async def _read(self, got: Got, reader: asyncio.StreamReader) -> None:
        if got.headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readline(), 16):
                got.body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            left = int(got.headers.get("content-length", "0"))
            while left:
                await self.reads.wait()
                piece = await reader.read(min(left, 1 << 16))
                if not piece:
                    raise ConnectionError
                got.body += piece
                left -= len(piece)
        got.complete = True

    async def _tunnel(self, got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept, and send every byte back."""
        accept = base64.b64encode(hashlib.sha1(got.headers["sec-websocket-key"].encode() + MAGIC).digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-accept: " + accept + b"\r\nset-cookie: a=b\r\n\r\n"
        )
        self.tunnels.append(writer)
        while data := await reader.read(1 << 16):
            got.body += data
            writer.write(data)
            await writer.drain()

    def _answer(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )
