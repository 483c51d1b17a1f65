"""An API server over HTTP, on `fakes.cluster.Cluster`: pages, chunked watches, and everything that breaks."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fakes.cluster import Cluster

TOKEN = "token-1"


class ClusterApi:
    """Serves one cluster.

    Attributes:
        cluster: The pods that it serves.
        tokens: Bearer tokens that it takes.
        status: If not 0, the status of every answer.
        forbidden: Namespaces that may not be read.
        hanging: True if it sends no answers at all.
        mute: True if watches begin but send nothing.
        short: True if watches end at once.
        page_pods: Most pods of a page; a client may ask for fewer.
        requests: Path and parameters of each request.
        objects: Answers at other paths than those of pods; 404 elsewhere.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.tokens = {TOKEN}
        self.status = 0
        self.forbidden: set[str] = set()
        self.hanging = self.mute = self.short = False
        self.page_pods = 1000
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.objects: dict[str, Any] = {}
        self.url = ""
        self._watches: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def watches(self) -> int:
        """Number of open watches."""
        return len(self._watches)

    def asked(self, *, watch: bool) -> list[dict[str, str]]:
        """Parameters of all lists, or of all watches."""
        return [parameters for _, parameters in self.requests if ("watch" in parameters) is watch]

    def kubeconfig(self, folder: Path, token: str = TOKEN) -> str:
        """Write a file that leads here."""
        user = {"tokenFile": str(folder / "token")}
        (folder / "token").write_text(token)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "us", "user": user}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "us", "namespace": "llm"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return str(path)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["ClusterApi"]:
        """Listen on a port of our own."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.hanging = False
            while self._connections:
                self.cut()
                await asyncio.sleep(0.005)

    def cut(self, half: bytes = b"") -> None:
        """Break all watches off, after half a line."""
        for writer in list(self._connections):
            if half and writer in self._watches:
                writer.write(b"%x\r\n%s\r\n" % (len(half), half))
            writer.close()

    def say(self, line: bytes) -> None:
        """Tell all watches a line, in chunks of a byte each."""
        for writer in list(self._watches):
            for byte in line + b"\n":
                writer.write(b"1\r\n%c\r\n" % byte)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head.decode().split("\r\n"), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            self._watches.discard(writer)
            writer.close()

    async def _answer(self, head: list[str], writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(head[0].split(" ")[1])
        parameters = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.requests.append((parts.path, parameters))
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        while self.hanging:  # noqa: ASYNC110 - plain state, without a signal
            await asyncio.sleep(0.01)
        words = unquote(parts.path).strip("/").split("/")
        namespace = words[3] if words[2] == "namespaces" else "*"
        if self.status:
            await _error(writer, self.status, "as told")
        elif headers.get("authorization", "").removeprefix("bearer ") not in self.tokens:
            await _error(writer, 401, "Unauthorized")
        elif words[0] == "apis":
            found = self.objects.get("/".join(words))
            await (_error(writer, 404, "not found") if found is None else _whole(writer, 200, found))
        elif namespace in self.forbidden:
            await _error(writer, 403, f'pods is forbidden: cannot list in the namespace "{namespace}"')
        elif "watch" in parameters:
            await self._watch(writer, namespace, parameters)
        else:
            await self._list(writer, namespace, parameters)

    async def _list(self, writer: asyncio.StreamWriter, namespace: str, parameters: dict[str, str]) -> None:
        found = self.cluster.selected(namespace, parameters["labelSelector"])
        begin = int(parameters.get("continue", "0"))
        limit = min(int(parameters["limit"]), self.page_pods)
        metadata = {"resourceVersion": str(self.cluster.version)}
        if begin + limit < len(found):
            metadata |= {
                "continue": str(begin + limit),
                "remainingItemCount": str(len(found) - begin - limit),
            }
        page = {"kind": "PodList", "metadata": metadata, "items": found[begin : begin + limit]}
        self.cluster.lists += 1
        await _whole(writer, 200, page)

    async def _watch(self, writer: asyncio.StreamWriter, namespace: str, parameters: dict[str, str]) -> None:
        at = int(parameters["resourceVersion"])
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await writer.drain()
        self._watches.add(writer)
        if at < self.cluster.oldest:
            status = {
                "kind": "Status",
                "code": 410,
                "reason": "Expired",
                "message": "too old resource version",
            }
            _chunk(writer, {"type": "ERROR", "object": status})
        if at < self.cluster.oldest or self.short:
            await _end(writer)
            return
        while not writer.is_closing():
            if not self.mute:
                for version, kind, obj in self.cluster.told(namespace, parameters["labelSelector"], at):
                    at = version
                    _chunk(writer, {"type": kind, "object": obj})
            await writer.drain()
            await asyncio.sleep(0.002)


def _chunk(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    """Send an event in two chunks that meet in the middle of it."""
    text = json.dumps(event, ensure_ascii=False)
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        text = json.dumps(event)  # a lone surrogate can only be written escaped
    line = text.encode() + b"\n"
    for part in (line[: len(line) // 2], line[len(line) // 2 :]):
        writer.write(b"%x\r\n%s\r\n" % (len(part), part))


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _whole(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + data)
    await writer.drain()


async def _error(writer: asyncio.StreamWriter, status: int, message: str) -> None:
    await _whole(writer, status, {"kind": "Status", "status": "Failure", "code": status, "message": message})
