"""An API server of Kubernetes that serves pods as the bytes that it was given."""

import asyncio
import contextlib
import json
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtest.fuzz.pods import NAMESPACE

POLL_S = 0.01


class ApiServer:
    """Lists and watches on a port of this machine; an async context manager."""

    def __init__(self) -> None:
        self._version = 100
        self._pods: dict[str, bytes] = {}
        self._history: list[tuple[int, bytes, bytes]] = []
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def kubeconfig(self, folder: Path) -> Path:
        """Write a file that leads here."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "us", "user": {"token": "token"}}],
            "contexts": [
                {"name": "here", "context": {"cluster": "here", "user": "us", "namespace": NAMESPACE}}
            ],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def put(self, name: str, pod: bytes) -> None:
        """Add a pod; its bytes need not be JSON."""
        self._pods[name] = pod
        self._happens(b"ADDED", pod)

    def delete(self, name: str) -> None:
        """Delete a pod."""
        del self._pods[name]
        self._version += 1
        metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": {"app": "engine"}}
        metadata["resourceVersion"] = str(self._version)
        self._version -= 1
        self._happens(b"DELETED", json.dumps({"metadata": metadata, "spec": {}, "status": {}}).encode())

    def _happens(self, kind: bytes, pod: bytes) -> None:
        self._version += 1
        self._history.append((self._version, kind, pod))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await (self._watch if b"watch=true" in head else self._list)(writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the gateway left
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _list(self, writer: asyncio.StreamWriter) -> None:
        items = b",".join(self._pods.values())
        body = b'{"kind":"PodList","metadata":{"resourceVersion":"%d"},"items":[%b]}' % (self._version, items)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()

    async def _watch(self, writer: asyncio.StreamWriter) -> None:
        told = len(self._history)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        while not writer.is_closing():
            for _, kind, pod in self._history[told:]:
                line = b'{"type":"%b","object":%b}\n' % (kind, pod)
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            told = len(self._history)
            await writer.drain()
            await asyncio.sleep(POLL_S)
